"""The HTTP face: OpenAI's endpoints, vLLM's extra fields, and a plain ``/generate``."""
