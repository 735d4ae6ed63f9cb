"""The operations as Triton kernels, for NVIDIA GPUs from compute capability 8.0; `ops.TritonOps` implements `Ops`."""

from draftline.kernels.triton.compile.shared_cache import share_cache

share_cache()  # before any kernel of this package is compiled, whichever is the first
