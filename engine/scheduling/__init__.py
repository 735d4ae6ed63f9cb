"""The scheduler and the KV cache manager: which sequences run, with how many tokens, in which blocks. No tensors."""
