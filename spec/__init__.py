"""Speculative decoding: drafters, adaptive draft lengths, and training of draft models."""
