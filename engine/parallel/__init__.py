"""Tensor parallelism: one model on several devices of a host, a process each. Begin with `leader`, then `follower`."""
