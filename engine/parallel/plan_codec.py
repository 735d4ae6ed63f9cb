"""Plans as int32 words: what a rank needs of a plan to compute its forward pass, in one layout.

The layout: the numbers of rows, of admitted rows, of new blocks and of the drafter's chunks; six words for each row,
four for each admitted row, three for each block and each chunk; and the admitted sequences' tokens, one sequence after
another.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.spec.drafter import DraftChunk

_HEAD, _ROW, _ADMITTED, _BLOCK, _CHUNK = 4, 6, 4, 3, 3

_SAMPLING = (SamplingParams(), SamplingParams(prompt_logprobs=0))
"""Of all parameters, only the wish for a prompt's log-probabilities changes the forward pass."""


def encode(plan: Plan, catch_up: Seq[DraftChunk] = ()) -> np.ndarray:
    """The words of a plan, and of the chunks that the drafter catches up with."""
    words = [len(plan.rows), len(plan.admitted), len(plan.new_blocks), len(catch_up)]
    for row in plan.rows:
        words += (row.slot, row.start, row.count, row.known, row.drafts, row.samples)
    for row in plan.admitted:
        sequence = row.sequence
        wants_prompt = sequence.sampling.prompt_logprobs is not None
        words += (row.slot, sequence.prompt_len, wants_prompt, len(sequence.tokens))
    for block in plan.new_blocks:
        words += block
    for chunk in catch_up:
        words += (chunk.slot, chunk.start, chunk.count)
    tokens = [np.array(row.sequence.tokens, np.int32) for row in plan.admitted]
    return np.concatenate([np.array(words, np.int32), *tokens])


class PlanDecoder:
    """Makes plans of words. It remembers the sequence in each slot."""

    def __init__(self) -> None:
        """No sequence yet."""
        self._in_slot: dict[int, Sequence] = {}

    def decode(self, words: np.ndarray) -> tuple[Plan, tuple[DraftChunk, ...]]:
        """The plan and the chunks. The plan's sequences have their tokens, and none of rank 0's parameters."""
        widths = (_ROW, _ADMITTED, _BLOCK, _CHUNK)
        ends = (_HEAD + np.cumsum([0, *words[:_HEAD] * widths])).tolist()
        of_rows, of_admitted, of_blocks, of_chunks = (
            words[first:end].reshape(-1, width).tolist()
            for first, end, width in zip(ends, ends[1:], widths, strict=False)
        )
        tokens = words[ends[-1] :]
        for slot, prompt_len, wants_prompt, count in of_admitted:
            self._in_slot[slot] = _sequence(tokens[:count].tolist(), prompt_len, _SAMPLING[wants_prompt])
            tokens = tokens[count:]
        plan = Plan(
            rows=tuple([Row(self._in_slot[row[0]], *row) for row in of_rows]),
            admitted=tuple([Row(self._in_slot[slot], slot, 0, 1, 1, 0, 0) for slot, *_ in of_admitted]),
            new_blocks=tuple([tuple(block) for block in of_blocks]),
        )
        return plan, tuple([DraftChunk(*chunk) for chunk in of_chunks])


def _sequence(tokens: list[int], prompt_len: int, sampling: SamplingParams) -> Sequence:
    return Sequence("", 0, tokens, prompt_len, sampling, seed=0, max_len=0)
