"""The operations in plain torch: what a CPU runs, and the oracle of every kernel test. `ops.ReferenceOps` is all of them."""
