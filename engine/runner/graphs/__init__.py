"""Steps as CUDA graphs. Begin with `executor`."""
