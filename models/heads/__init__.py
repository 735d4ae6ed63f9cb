"""Heads: small networks that draft from a target's hidden states. Their formats, their weights, their forward pass."""
