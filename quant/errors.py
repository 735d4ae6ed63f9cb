"""The error of a weight, or of a configuration of weights, that nothing here can read."""

from __future__ import annotations


class UnsupportedFormatError(ValueError):
    """A weight in a format that nothing here reads. The message names the tensor, or the configuration's field."""
