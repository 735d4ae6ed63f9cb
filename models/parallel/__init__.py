"""Tensor parallelism: the part of a model that each rank has. Begin with `shard`."""
