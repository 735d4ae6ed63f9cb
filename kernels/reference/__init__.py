"""The operations in plain torch: the CPU path, and the oracle of every kernel test. See `ops.ReferenceOps`."""
