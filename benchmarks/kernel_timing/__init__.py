"""The parts of kernels.py: sections, shapes, whole steps, and timing by CUDA graphs."""
