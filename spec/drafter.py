"""``Drafter``: what guesses the next tokens of the decoding sequences, before the target model verifies them.

A drafter works on slots and lengths, never on sequences, and leaves its guesses in the slot table, behind each
sequence's known tokens. So the step is the same whatever drafts, and "no speculation" is a drafter that proposes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftline.kernels.slots import SlotTable


@dataclass(frozen=True, slots=True)
class DraftRows:
    """The rows of a step that want drafts.

    Attributes:
        slots: the slot of each row.
        lengths: its known tokens; drafts go to ``tokens[slot, length:length + count]``.
        counts: how many drafts it wants, at least one.
    """

    slots: tuple[int, ...]
    lengths: tuple[int, ...]
    counts: tuple[int, ...]


class Drafter(Protocol):
    """Proposes tokens. Whatever it proposes, the output stays what plain decoding gives."""

    name: str
    max_draft_tokens: int

    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        """Write each row's drafts into ``table.tokens``."""
        ...
