"""``SafetensorsCheckpoint``: an HF folder's model.safetensors, whole or in shards, read tensor by tensor.

Which formats can run is not decided here: every dtype that safetensors gives torch passes through by its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.json_file import read_json_object
from draftline.models.weight_shapes import check_shape, weight_shapes
from draftline.quant.tensor import RawTensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class _Header(Protocol):
    def get_dtype(self) -> str: ...
    def get_shape(self) -> list[int]: ...


class _File(Protocol):
    """What is used of `safe_open`, whose methods have no types."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Header: ...
    def get_tensor(self, name: str) -> Tensor: ...


class SafetensorsCheckpoint:
    """The weights of an HF folder. All headers are read and checked on opening, tensors when they are asked for."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """Open the folder's files.

        Raises:
            ModelLoadError: a file is missing or damaged, or the index names a tensor that its shard does not have.
        """
        self.config = config
        self._shapes = weight_shapes(config)
        self._folder = folder
        self._file_of = _indexed(folder) if (folder / INDEX_FILE).is_file() else _single(folder)
        self._files = {path: _open(path) for path in sorted(set(self._file_of.values()))}
        held = {path: frozenset(file.keys()) for path, file in self._files.items()}
        for name, path in self._file_of.items():
            if name not in held[path]:
                raise ModelLoadError(f"{path}: {name}: {INDEX_FILE} names it, but it is not in this file")

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str) -> RawTensor:
        """Read one tensor. See `Checkpoint.tensor`."""
        path = self._file_of.get(name)
        if path is None:
            raise ModelLoadError(f"{self._folder}: {name}: not in this checkpoint")
        try:
            header = self._files[path].get_slice(name)
            dtype, shape = header.get_dtype(), tuple(header.get_shape())
            check_shape(self._shapes, name, shape, path)
            data = self._files[path].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, AttributeError, TypeError) as error:
            raise ModelLoadError(f"{path}: {name}: cannot be read: {error}") from error
        return RawTensor(name, dtype.upper(), shape, data)


def _single(folder: Path) -> dict[str, Path]:
    path = folder / SINGLE_FILE
    if not path.is_file():
        raise ModelLoadError(f"{folder}: holds neither {SINGLE_FILE} nor {INDEX_FILE}")
    return dict.fromkeys(_open(path).keys(), path)


def _indexed(folder: Path) -> dict[str, Path]:
    index = folder / INDEX_FILE
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelLoadError(f"{index}: weight_map: missing, or not an object")
    paths: dict[str, Path] = {}
    for name, file in weight_map.items():
        # A shard lies beside its index; a path that leads elsewhere is not one that HF's tools write.
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelLoadError(f"{index}: weight_map: {name}: {file!r} is not a file name")
        path = folder / file
        if not path.is_file():
            raise ModelLoadError(f"{path}: no such file, though {INDEX_FILE} has {name} in it")
        paths[name] = path
    return paths


def _open(path: Path) -> _File:
    try:
        return cast(_File, safe_open(path, framework="pt"))
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path}: is damaged or no safetensors file: {error}") from error
