"""Training a small draft model from a target's own answers."""
