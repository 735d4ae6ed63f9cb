"""``Shard``: one rank's part of a model, as the model's own code sees it.

A family builds its projections from a configuration and a checkpoint. A rank gives it the configuration of its part,
and a checkpoint that reads just that part of every tensor. What remains is that some results are parts as well: those
of `summed` projections, of the embedding and of the head. The shard turns each into the whole. `WHOLE`, that of a
single process, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor
from typing_extensions import override

from draftline.kernels.collectives import Collectives
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.parallel.checkpoint import PartialCheckpoint
from draftline.models.parallel.linear import Embedding, JoinedLinear, PartialEmbedding, SummedLinear
from draftline.models.parallel.split import Range, Split, splits
from draftline.quant.linear import Linear


class Shard(Protocol):
    """What of a model this process has. See `PartialShard`."""

    @property
    def scripted(self) -> bool:
        """Whether one TorchScript program may run it: it waits for no other rank."""
        ...

    def config(self, config: ModelConfig) -> ModelConfig:
        """The configuration of the part: its own heads and channels."""
        ...

    def checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """The part of every tensor."""
        ...

    def vocabulary(self, size: int) -> Range:
        """The tokens whose rows of the embedding and of the head are in the part."""
        ...

    def summed(self, make: Callable[[Tensor | None], Linear], bias: Tensor | None) -> Linear:
        """A projection whose input is divided between the ranks.

        ``make`` makes this rank's share, with a bias or without.
        """
        ...

    def joined(self, part: Linear) -> Linear:
        """The projection whose outputs are the tokens, ``part`` having this rank's."""
        ...

    def embedding(self, table: Tensor) -> Embedding:
        """The embedding, ``table`` having this rank's tokens."""
        ...


class WholeShard(Shard):
    """The whole model in one process."""

    scripted = True

    @override
    def config(self, config: ModelConfig) -> ModelConfig:
        return config

    @override
    def checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint

    @override
    def vocabulary(self, size: int) -> Range:
        return 0, size

    @override
    def summed(self, make: Callable[[Tensor | None], Linear], bias: Tensor | None) -> Linear:
        return make(bias)

    @override
    def joined(self, part: Linear) -> Linear:
        return part

    @override
    def embedding(self, table: Tensor) -> Embedding:
        return Embedding(table)


WHOLE = WholeShard()


@dataclass(frozen=True, slots=True)
class PartialShard(Shard):
    """One rank's part.

    Attributes:
        parts: those of all ranks.
        collectives: exchange results with the other ranks.
    """

    scripted: ClassVar[bool] = False

    parts: tuple[Split, ...]
    collectives: Collectives

    @staticmethod
    def of(config: ModelConfig, collectives: Collectives) -> PartialShard:
        """The part of a model that the collectives' rank has.

        Raises:
            ModelLoadError: a rank would have nothing.
        """
        return PartialShard(splits(config, collectives.size), collectives)

    @property
    def own(self) -> Split:
        """This rank's part."""
        return self.parts[self.collectives.rank]

    @property
    def is_sized_as_first(self) -> bool:
        """Whether rank 0 has as many heads and channels, and so launches the same kernels."""
        return self.own.heads_and_channels == self.parts[0].heads_and_channels

    @override
    def config(self, config: ModelConfig) -> ModelConfig:
        return self.own.local(config)

    @override
    def checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        return PartialCheckpoint(checkpoint, self.own)

    @override
    def vocabulary(self, size: int) -> Range:
        return self.own.vocabulary

    @override
    def summed(self, make: Callable[[Tensor | None], Linear], bias: Tensor | None) -> Linear:
        return SummedLinear(make(None), bias, self.collectives)  # the bias counts once

    @override
    def joined(self, part: Linear) -> Linear:
        widths = [end - first for first, end in (other.vocabulary for other in self.parts)]
        return JoinedLinear(part, widths, self.collectives)

    @override
    def embedding(self, table: Tensor) -> Embedding:
        return PartialEmbedding(table, self.own.vocabulary[0], self.parts[-1].vocabulary[1], self.collectives)
