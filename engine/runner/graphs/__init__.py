"""The parts of a step as CUDA graphs."""
