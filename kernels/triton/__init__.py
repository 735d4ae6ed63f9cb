"""The operations as Triton kernels, for NVIDIA GPUs from compute capability 8.0; `ops.TritonOps` implements `Ops`."""

from draftline.kernels.triton.compile.keys import settle_keys
from draftline.kernels.triton.compile.launchers import separate_launchers
from draftline.kernels.triton.compile.shared_cache import share_cache

# Before any kernel of this package is compiled, whichever is the first.
share_cache()
settle_keys()
separate_launchers()
