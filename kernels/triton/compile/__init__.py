"""Compiling kernels ahead of time: as a check without a GPU, and before a server's first step."""
