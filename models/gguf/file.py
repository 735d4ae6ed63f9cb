"""``GGUFFile``: the metadata and the tensor table of a GGUF file, memory-mapped.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The gguf package's own reader makes several numpy
arrays for each string of a vocabulary, which takes seconds; this one makes one ``str``. Not here: the meaning of
metadata and tensors for a model (`checkpoint.py`, `config.py`).
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from draftline.models.checkpoints.damaged import damaged
from draftline.models.errors import ModelLoadError

Value = int | float | bool | str | list["Value"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, str] = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
"""numpy dtypes by GGUF's value type."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """The location and layout of one tensor.

    Attributes:
        name: its name in the file.
        type_name: its ggml type: ``F32``, ``Q4_1``, …, or ``type 99`` if the gguf package does not know it.
        shape: its shape with the contiguous axis last (GGUF writes it first).
        offset: its first byte in the file.
        row_bytes: bytes along the last axis, 0 if the type is not known.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    row_bytes: int

    @property
    def num_rows(self) -> int:
        """The number of runs along the last axis."""
        return math.prod(self.shape[:-1])


class GGUFFile:
    """An open GGUF file.

    Attributes:
        path: the file.
        metadata: its key/value pairs.
        tensors: its tensors by name.
    """

    def __init__(self, path: Path) -> None:
        """Map the file and read all but its tensors' data.

        Raises:
            ModelLoadError: it is no GGUF file, of another version, truncated or damaged.
        """
        self.path = path
        # Private and writable, since torch needs writable memory; unwritten pages are never copied.
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path}: cannot be read: {error}") from error
        cursor = _Cursor(path, self._data)
        tensor_count, pair_count = _header(cursor)
        self.metadata = _metadata(cursor, pair_count)
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise ModelLoadError(f"{path}: general.alignment: {alignment!r} is not a power of two from 8 on")
        self.tensors = _tensors(cursor, tensor_count, alignment)

    def rows(self, tensor: GGUFTensor) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        """A tensor's bytes, [num_rows, row_bytes], not copied."""
        size = tensor.num_rows * tensor.row_bytes
        return np.frombuffer(self._data, np.uint8, size, tensor.offset).reshape(tensor.num_rows, tensor.row_bytes)


_open_files: WeakValueDictionary[tuple[Path, int, int, int], GGUFFile] = WeakValueDictionary()


def open_gguf(path: Path) -> GGUFFile:
    """The file, which all that hold it at a time share: its metadata take a tenth of a second to read.

    Raises:
        ModelLoadError: see `GGUFFile`.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    key = path, status.st_ino, status.st_size, status.st_mtime_ns
    file = _open_files.get(key)
    if file is None:
        file = _open_files[key] = GGUFFile(path)
    return file


class _Cursor:
    """Reads consecutive values; raises ModelLoadError if the file ends too early."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.position = 0
        self.size = len(data)
        self._data = data

    def take(self, count: int, what: str) -> bytes:
        end = self.position + count
        if end > self.size:
            raise ModelLoadError(f"{self.path}: truncated: the file ends within {what}")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def uint32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def uint64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def string(self, what: str) -> str:
        raw = self.take(self.uint64(what), what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ModelLoadError(f"{self.path}: {what}: is not UTF-8: {raw[:40]!r}") from error

    def strings(self, count: int, what: str) -> list[Value]:
        """Like `string`, count times, but with the loop's work inlined: vocabularies have 100,000 of them."""
        if count * 8 > self.size:
            raise ModelLoadError(f"{self.path}: truncated: the file ends within {what}")
        data, position, length_at = self._data, self.position, struct.Struct("<Q").unpack_from
        values: list[Value] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + length_at(data, position)[0]
                if position > self.size:
                    raise ModelLoadError(f"{self.path}: truncated: the file ends within {what}")
                values.append(data[start:position].decode())
        except struct.error as error:
            raise ModelLoadError(f"{self.path}: truncated: the file ends within {what}") from error
        except UnicodeDecodeError as error:
            raise ModelLoadError(f"{self.path}: {what}: entry {len(values)} is not UTF-8") from error
        self.position = position
        return values

    def scalars(self, kind: int, count: int, what: str) -> list[Value]:
        dtype = np.dtype(_SCALARS[kind])
        values: list[Value] = np.frombuffer(self.take(count * dtype.itemsize, what), dtype).tolist()
        return values

    def array(self, what: str) -> list[Value]:
        kind, count = self.uint32(what), self.uint64(what)
        if kind == _STRING:
            return self.strings(count, what)
        if kind in _SCALARS:
            return self.scalars(kind, count, what)
        raise ModelLoadError(f"{self.path}: {what}: arrays of value type {kind} are not supported")

    def value(self, what: str) -> Value:
        kind = self.uint32(what)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what)
        if kind in _SCALARS:
            return self.scalars(kind, 1, what)[0]
        raise ModelLoadError(f"{self.path}: {what}: value type {kind} is not known")


def _header(cursor: _Cursor) -> tuple[int, int]:
    """The numbers of tensors and of metadata pairs."""
    magic = cursor.take(4, "the header")
    if magic != _MAGIC:
        raise damaged(cursor.path, f"is no GGUF file: it begins with {magic!r}")
    version = cursor.uint32("the header")
    if version not in _VERSIONS:
        hint = " (a big-endian file)" if version and version % 65536 == 0 else ""
        raise ModelLoadError(f"{cursor.path}: GGUF version {version}{hint} is not supported; 2 and 3 are")
    return cursor.uint64("the header"), cursor.uint64("the header")


def _metadata(cursor: _Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for index in range(count):
        key = cursor.string(f"the key of metadata pair {index}")
        if key in metadata:
            raise ModelLoadError(f"{cursor.path}: {key}: is there twice")
        metadata[key] = cursor.value(key)
    return metadata


def _tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, GGUFTensor]:
    tensors: dict[str, GGUFTensor] = {}
    for index in range(count):
        tensor = _tensor(cursor, f"the description of tensor {index}")
        if tensor.name in tensors:
            raise ModelLoadError(f"{cursor.path}: {tensor.name}: is there twice")
        if tensor.offset % alignment:
            raise ModelLoadError(f"{cursor.path}: {tensor.name}: its offset {tensor.offset} is not aligned")
        tensors[tensor.name] = tensor
    start = -(-cursor.position // alignment) * alignment
    located = {
        name: GGUFTensor(name, tensor.type_name, tensor.shape, start + tensor.offset, tensor.row_bytes)
        for name, tensor in tensors.items()
    }
    for tensor in located.values():
        end = tensor.offset + tensor.num_rows * tensor.row_bytes
        if end > cursor.size:
            raise ModelLoadError(
                f"{cursor.path}: {tensor.name}: truncated: its data end at byte {end}, the file at {cursor.size}"
            )
    return located


def _tensor(cursor: _Cursor, what: str) -> GGUFTensor:
    """A tensor's description; its offset is relative to the start of the tensor data."""
    name = cursor.string(what)
    num_dimensions = cursor.uint32(name)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise ModelLoadError(f"{cursor.path}: {name}: has {num_dimensions} dimensions, not 1 to {_MAX_DIMENSIONS}")
    shape = tuple(cursor.uint64(name) for _ in range(num_dimensions))[::-1]
    kind, offset = cursor.uint32(name), cursor.uint64(name)
    try:
        ggml_type = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[ggml_type]
    except (ValueError, KeyError):
        return GGUFTensor(name, f"type {kind}", shape, offset, 0)
    if shape[-1] % block:
        raise ModelLoadError(
            f"{cursor.path}: {name}: rows of {shape[-1]} are not made of {ggml_type.name} blocks of {block}"
        )
    return GGUFTensor(name, ggml_type.name, shape, offset, shape[-1] // block * block_bytes)
