"""Which of several engines a request goes to: the one that has the least to do for it and before it.

What an engine has to do is counted in tokens of prompts. A prompt's tokens that are probably in an engine's prefix
cache count nothing there, so requests with a common prefix meet in one engine until its queue outweighs the prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

OUTPUT_TOKENS = 128
"""An output in progress counts as this many tokens of prompts: it slows the engine's other outputs, and it will go
on."""

_MAX_BLOCKS = 1024
"""Blocks of a prompt that are looked at."""


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has in progress.

    Attributes:
        outputs: outputs that have not ended.
        uncached: tokens of prompts that it has not computed.
    """

    outputs: int
    uncached: int

    @property
    def tokens(self) -> int:
        """All of it, in tokens of prompts."""
        return self.uncached + OUTPUT_TOKENS * self.outputs


class PrefixMemory:
    """The prefixes that an engine was sent, as many as its cache has blocks.

    It does not ask the engine, which may differ.
    """

    def __init__(self, max_blocks: int) -> None:
        """Remember at most this many blocks, those that were used last."""
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def matching(self, blocks: Sequence[int]) -> int:
        """How many blocks of a prompt, from its beginning, are known."""
        return next((index for index, block in enumerate(blocks) if block not in self._blocks), len(blocks))

    def add(self, blocks: Sequence[int]) -> None:
        """Remember a prompt's blocks. The first ones of a prefix are forgotten last."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)


class Placement:
    """Places requests. One thread at a time uses it."""

    def __init__(self, engines: int, cache_blocks: int, block_size: int) -> None:
        """For this many engines, each with a cache of this many blocks of ``block_size`` tokens."""
        self._block_size = block_size
        self._memories = [PrefixMemory(cache_blocks) for _ in range(engines)]
        self._last = engines - 1

    def place(self, token_ids: Sequence[int], loads: Sequence[Load | None]) -> tuple[int, int]:
        """Choose an engine for a prompt.

        Args:
            token_ids: the prompt.
            loads: of each engine; None for one that has ended. At least one has not.

        Returns:
            The engine's index, and how many of the prompt's tokens it probably has to compute.
        """
        blocks = self._hashes(token_ids)
        known = [memory.matching(blocks) * self._block_size for memory in self._memories]
        costs = {
            index: load.tokens + len(token_ids) - known[index] for index, load in enumerate(loads) if load is not None
        }
        # Engines with equal costs take turns.
        engines = len(self._memories)
        chosen = min(costs, key=lambda index: (costs[index], (index - self._last - 1) % engines))
        self._memories[chosen].add(blocks)
        self._last = chosen
        return chosen, len(token_ids) - known[chosen]

    def _hashes(self, token_ids: Sequence[int]) -> list[int]:
        """A hash of each whole block and all tokens before it.

        The last token is always computed, so its block is left out.
        """
        size, before = self._block_size, 0
        hashes: list[int] = []
        for start in range(0, min(len(token_ids) - size, _MAX_BLOCKS * size), size):
            before = hash((before, *token_ids[start : start + size]))
            hashes.append(before)
        return hashes
