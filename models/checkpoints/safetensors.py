"""``SafetensorsCheckpoint``: an HF folder's model.safetensors, whole or in shards, read tensor by tensor.

Not here: which formats can run. Every dtype that safetensors gives torch passes through by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor
from typing_extensions import override

from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.checkpoints.damaged import damaged
from draftline.models.checkpoints.json_file import read_json_object
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import FAMILIES, weight_shapes
from draftline.models.families.stored import StoredWeight
from draftline.models.weight_shapes import Shape, check_shape
from draftline.quant.tensor import RawTensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_IN_LAYER = re.compile(r"model\.layers\.(\d+)\..*\.(?:weight|bias)")


class _Header(Protocol):
    def get_dtype(self) -> str: ...
    def get_shape(self) -> list[int]: ...


class _File(Protocol):
    """The used part of `safe_open`, whose methods have no types."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Header: ...
    def get_tensor(self, name: str) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight's tensor in the files: its name, and whether it is transposed."""

    stored_name: str
    transposed: bool


class SafetensorsCheckpoint(Checkpoint):
    """The weights of an HF folder. Opening reads and checks all headers; tensors are read on demand."""

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        shapes: Mapping[str, Shape] | None = None,
        stored: Callable[[str], StoredWeight] | None = None,
        unread: Callable[[str], bool] | None = None,
        padded: Collection[str] = (),
    ) -> None:
        """Open the folder's files.

        Args:
            folder: holds the files.
            config: the model's shape.
            shapes: of the weights, where they are not those that ``config`` implies.
            stored: maps a tensor's name in the files to the weight, where it is not the family's map.
            unread: whether the files may have a tensor, by the weight's name, that ``shapes`` lack; by default all but
                those of layers.
            padded: the weights that may have more rows than ``shapes`` say.

        Raises:
            ModelLoadError: a file is missing or damaged, the index names a tensor that its shard does not have, a
                weight is there under two names, or a tensor that ``shapes`` lack may not go unread.
        """
        self.config = config
        self._shapes = weight_shapes(config) if shapes is None else shapes
        stored = stored or FAMILIES[config.family].stored
        unread = unread or (lambda name: not _is_computed(name, config.num_layers))
        self._folder = folder
        self._padded = frozenset(padded)
        # Of both, transformers takes the single file: the shards may be those of the model that it was made from.
        sharded = (folder / INDEX_FILE).is_file() and not (folder / SINGLE_FILE).is_file()
        self._file_of = _indexed(folder) if sharded else _single(folder)
        self._files = {path: _open(path) for path in sorted(set(self._file_of.values()))}
        held = {path: frozenset(file.keys()) for path, file in self._files.items()}
        for name, path in self._file_of.items():
            if name not in held[path]:
                raise ModelLoadError(f"{path}: {name}: {INDEX_FILE} names it, but it is not in this file")
        # The family's names to the file's.
        self._weights: dict[str, _Weight] = {}
        for name in self._file_of:
            as_stored = stored(name)
            weight = self._weights.setdefault(as_stored.name, _Weight(name, as_stored.transposed))
            if weight.stored_name != name:
                raise ModelLoadError(f"{folder}: {name}: is the same weight as {weight.stored_name}")
            if as_stored.name not in self._shapes and not unread(as_stored.name):
                raise ModelLoadError(f"{self._file_of[name]}: {name}: the configuration implies no such tensor")

    @override
    def __contains__(self, name: str) -> bool:
        return name in self._weights

    @override
    def tensor(self, name: str) -> RawTensor:
        weight = self._weights.get(name)
        if weight is None:
            raise ModelLoadError(f"{self._folder}: {name}: not in this checkpoint")
        stored_name = weight.stored_name
        path = self._file_of[stored_name]
        try:
            header = self._files[path].get_slice(stored_name)
            dtype, shape = header.get_dtype(), tuple(header.get_shape())
            wanted = self._shapes.get(name)
            if wanted is not None and weight.transposed:
                wanted = wanted[::-1]
            if wanted is not None and shape == (1, *wanted):
                shape = wanted  # a convolution's width, which OpenAI's GPT-2 keeps
            if wanted is not None and name in self._padded and shape[1:] == wanted[1:] and shape[0] > wanted[0]:
                wanted = shape
            check_shape(wanted, stored_name, shape, path)
            data = self._files[path].get_tensor(stored_name).view(shape)
        except (SafetensorError, OSError, RuntimeError, AttributeError, TypeError) as error:
            raise ModelLoadError(f"{path}: {stored_name}: cannot be read: {error}") from error
        if weight.transposed:
            data = data.t().contiguous()
        return RawTensor(name, dtype.upper(), tuple(data.shape), data)


def _is_computed(name: str, num_layers: int) -> bool:
    """Whether a weight or bias of this name would take part in the model's arithmetic.

    Scales do so with their weights. Layers behind the last one, and other models' parts, do not.
    """
    in_layer = _IN_LAYER.fullmatch(name)
    return name == "lm_head.bias" or (in_layer is not None and int(in_layer[1]) < num_layers)


def _single(folder: Path) -> dict[str, Path]:
    path = folder / SINGLE_FILE
    if not path.is_file():
        raise ModelLoadError(
            f"{folder}: holds neither {SINGLE_FILE} nor {INDEX_FILE}; "
            "weights in pytorch_model.bin have to be converted to safetensors"
        )
    return dict.fromkeys(_open(path).keys(), path)


def _indexed(folder: Path) -> dict[str, Path]:
    index = folder / INDEX_FILE
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelLoadError(f"{index}: weight_map: missing, or not an object")
    paths: dict[str, Path] = {}
    for name, file in weight_map.items():
        # A shard is in its index's folder: HF's tools write no other paths.
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
        raise damaged(path, f"is damaged or no safetensors file: {error}") from error
