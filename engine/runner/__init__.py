"""The runner: one step on the device, eagerly or as CUDA graphs. Begin with `runner`."""
