"""``NGram``: prompt lookup decoding. It drafts the continuation of the last earlier occurrence of a sequence's end."""

from __future__ import annotations

from typing_extensions import override

from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import Drafter, DraftRows

MAX_NGRAM = 4
"""Tokens of the longest n-gram that is looked up."""


class NGram(Drafter):
    """Prompt lookup decoding (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding): one small kernel."""

    name = "ngram"

    def __init__(self, max_draft_tokens: int, ops: Ops) -> None:
        """``max_draft_tokens`` is the most tokens that it proposes at once."""
        self.max_draft_tokens = max_draft_tokens
        self._ops = ops

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        self._ops.draft_ngram(rows.slots, rows.max_drafts, MAX_NGRAM, table)
