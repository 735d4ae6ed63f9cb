"""``GGUFFields``: a GGUF file's metadata, read field by field with errors that name the file and the key."""

from __future__ import annotations

from typing import cast

import numpy as np

from draftline.models.errors import ModelLoadError
from draftline.models.gguf.file import GGUFFile, Value


class GGUFFields:
    """The metadata of one file.

    Every method raises ModelLoadError if the key has a wrong type or is missing without a default.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._path = file.path
        self._metadata = file.metadata

    def error(self, key: str, problem: str) -> ModelLoadError:
        """The error of one key, to be raised."""
        return ModelLoadError(f"{self._path}: {key}: {problem}")

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._metadata

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._mismatch(key, "a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._mismatch(key, "a boolean", value)
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; an array with one for each layer must have equal ones."""
        value = self._value(key, default)
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._mismatch(key, "one integer", value)
        return value

    def optional_integer(self, key: str) -> int | None:
        """An integer, or None where the key is missing."""
        return self.integer(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """A float32, as the shortest decimal that rounds to it, as in the config.json before conversion."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._mismatch(key, "a number", value)
        return float(str(np.float32(value)))

    def strings(self, key: str) -> list[str]:
        """An array of strings."""
        return cast(list[str], self._array(key, str, "strings"))

    def integers(self, key: str) -> list[int]:
        """An array of integers."""
        return cast(list[int], self._array(key, int, "integers"))

    def numbers(self, key: str) -> list[float]:
        """An array of floats."""
        return cast(list[float], self._array(key, float, "floats"))

    def _array(self, key: str, kind: type, kinds: str) -> list[Value]:
        values = self._value(key, None)
        if not isinstance(values, list) or not all(type(value) is kind for value in values):
            raise self._mismatch(key, f"an array of {kinds}", values)
        return values

    def _value(self, key: str, default: Value | None) -> Value:
        value = self._metadata.get(key, default)
        if value is None:
            raise self.error(key, "missing")
        return value

    def _mismatch(self, key: str, expected: str, value: object) -> ModelLoadError:
        shown = repr(value)
        return self.error(key, f"expected {expected}, got {shown if len(shown) < 80 else shown[:80] + '…'}")
