"""``Split``: which heads, channels and tokens each rank of a model has. Arithmetic only.

- Heads are divided by groups: a key/value head and the query heads that read it. The first ranks have one group more
  where they do not come out even. If there are more ranks than groups, several ranks share a group: each has some of
  its query heads, and a copy of its key/value head.
- The MLP's channels and the vocabulary are divided in units of 128, the last of which may be smaller: so the groups of
  quantized weights, and the copies of tiles, stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError

MAX_RANKS = 8
"""The devices of a host."""

_UNITS = (128, 64, 32, 16, 8, 4, 2, 1)

Range = tuple[int, int]
"""The first index, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Split:
    """One rank's part of a model.

    Attributes:
        queries: its query heads.
        keys: its key/value heads.
        channels: its channels of the MLP.
        vocabulary: its tokens of the embedding and of the output projection.
    """

    queries: Range
    keys: Range
    channels: Range
    vocabulary: Range

    @property
    def heads_and_channels(self) -> tuple[int, int, int]:
        """How many query heads, key/value heads and channels it has."""
        return _length(self.queries), _length(self.keys), _length(self.channels)

    def local(self, config: ModelConfig) -> ModelConfig:
        """The configuration of this part. The residual stream and the vocabulary are whole."""
        num_heads, num_kv_heads, channels = self.heads_and_channels
        return replace(config, num_heads=num_heads, num_kv_heads=num_kv_heads, intermediate_size=channels)


def splits(config: ModelConfig, size: int) -> tuple[Split, ...]:
    """The parts of all ``size`` ranks.

    Raises:
        ModelLoadError: a rank would have no head, no channel or no token. The message names the sizes that work.
    """
    if not fits(config, size):
        working = [str(other) for other in range(1, MAX_RANKS + 1) if fits(config, other)]
        raise ModelLoadError(
            f"tensor_parallel_size: {size} ranks cannot share {config.num_heads} query heads, {config.intermediate_size} "
            f"channels and {config.vocab_size} tokens: one of them would have none; {', '.join(working)} work"
        )
    heads = _heads(config, size)
    channels = _in_units(config.intermediate_size, size)
    vocabulary = _in_units(config.vocab_size, size)
    return tuple(
        Split(queries, keys, of_mlp, tokens)
        for (queries, keys), of_mlp, tokens in zip(heads, channels, vocabulary, strict=True)
    )


def fits(config: ModelConfig, size: int) -> bool:
    """Whether each of ``size`` ranks would have a head, a channel and a token."""
    return size <= min(config.num_heads, config.intermediate_size, config.vocab_size)


def _heads(config: ModelConfig, size: int) -> list[tuple[Range, Range]]:
    """Each rank's query and key/value heads."""
    groups = config.num_kv_heads
    queries = config.num_heads // groups
    if size <= groups:
        return [((first * queries, end * queries), (first, end)) for first, end in _even(groups, size)]
    heads: list[tuple[Range, Range]] = []
    for group, (first, end) in enumerate(_even(size, groups)):
        heads += [
            ((group * queries + start, group * queries + stop), (group, group + 1))
            for start, stop in _even(queries, end - first)
        ]
    return heads


def _even(count: int, parts: int) -> list[Range]:
    """``count`` divided into ranges that differ by at most one, the longer ones first."""
    each, more = divmod(count, parts)
    ends = [index * each + min(index, more) for index in range(parts + 1)]
    return list(pairwise(ends))


def _in_units(count: int, parts: int) -> list[Range]:
    """``count`` divided at multiples of the largest unit that leaves no part empty."""
    unit = next(unit for unit in _UNITS if -(-count // unit) >= parts)
    return [(first * unit, min(end * unit, count)) for first, end in _even(-(-count // unit), parts)]


def _length(part: Range) -> int:
    return part[1] - part[0]
