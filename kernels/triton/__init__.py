"""The operations as Triton kernels, for NVIDIA GPUs from compute capability 8.0; `ops.TritonOps` implements `Ops`."""
