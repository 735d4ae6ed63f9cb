"""Parts of kernels.py: sections, model shapes, whole steps, and timing by CUDA graphs."""
