"""The error of a model that cannot be loaded."""


class ModelLoadError(ValueError):
    """A checkpoint that cannot be loaded. The message names the file, the tensor or field, and the problem."""
