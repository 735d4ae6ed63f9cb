"""``PartialCheckpoint``: a checkpoint of which only one rank's part of each tensor is read.

Which part follows from the module's name, the same in all families: `_ROWS` and `_COLUMNS`. Everything else (norms,
positions, biases of sums) is whole on every rank.

The files are mapped into memory, so that a tensor's other parts are never read, and no rank holds the whole model.
"""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.parallel.split import Range, Split
from draftline.quant.parts import columns_of, rows_of
from draftline.quant.tensor import RawTensor


def _heads(heads: Range, config: ModelConfig) -> Range:
    return heads[0] * config.head_dim, heads[1] * config.head_dim


def _queries_keys_values(split: Split, config: ModelConfig) -> tuple[Range, ...]:
    """The rows of a projection that has all three, one above the other."""
    keys, values = (
        config.num_heads * config.head_dim + part * config.num_kv_heads * config.head_dim for part in (0, 1)
    )
    first, end = _heads(split.keys, config)
    return _heads(split.queries, config), (keys + first, keys + end), (values + first, values + end)


_ROWS: dict[str, Callable[[Split, ModelConfig], tuple[Range, ...]]] = {
    "q_proj": lambda split, config: (_heads(split.queries, config),),
    "k_proj": lambda split, config: (_heads(split.keys, config),),
    "v_proj": lambda split, config: (_heads(split.keys, config),),
    "qkv_proj": _queries_keys_values,
    "gate_proj": lambda split, config: (split.channels,),
    "up_proj": lambda split, config: (split.channels,),
    "embed_tokens": lambda split, config: (split.vocabulary,),
    "lm_head": lambda split, config: (split.vocabulary,),
}
"""By module: the rows of its weight, and the entries of its bias."""

_COLUMNS: dict[str, Callable[[Split, ModelConfig], Range]] = {
    "o_proj": lambda split, config: _heads(split.queries, config),
    "down_proj": lambda split, config: split.channels,
}
"""By module: the columns of its weight."""


class PartialCheckpoint(Checkpoint):
    """One rank's part of another checkpoint.

    Attributes:
        config: the configuration of the part.
    """

    def __init__(self, whole: Checkpoint, split: Split) -> None:
        self.config = split.local(whole.config)
        self._whole, self._split = whole, split

    @override
    def __contains__(self, name: str) -> bool:
        return name in self._whole

    @override
    def tensor(self, name: str) -> RawTensor:
        raw = self._whole.tensor(name)
        module, _, kind = name.rpartition(".")
        module = module.rpartition(".")[2]
        if module in _ROWS:
            return rows_of(raw, _ROWS[module](self._split, self._whole.config))
        if module in _COLUMNS and kind == "weight":
            return columns_of(raw, *_COLUMNS[module](self._split, self._whole.config))
        return raw
