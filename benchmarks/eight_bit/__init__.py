"""Parts of quantization.py: time and memory on a GPU, and quality."""
