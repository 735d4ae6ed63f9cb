"""``Drafter``: what guesses the next tokens of the decoding sequences, before the target model verifies them.

A drafter works on slots, never on sequences, and leaves its guesses in the slot table, behind each sequence's known
tokens, whose number only the device need know. So the step is the same whatever drafts, and "no speculation" is a
drafter that proposes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from draftline.kernels.slots import SlotTable


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Who wants drafts.

    Attributes:
        slots: [R] int64, their slots.
        drafts: [R] int32, how many each may have; 0 for none, as padding.
        most: the largest of ``drafts``, or more.
    """

    slots: Tensor
    drafts: Tensor
    most: int


@dataclass(frozen=True, slots=True)
class DraftChunk:
    """Known tokens that a drafter with a cache of its own has not seen: ``count`` from position ``start`` of a slot."""

    slot: int
    start: int
    count: int


class Drafter(Protocol):
    """Proposes tokens. Whatever it proposes, the output stays what plain decoding gives.

    Attributes:
        name: as it is chosen and reported.
        max_draft_tokens: the most that it is asked for at once.
    """

    name: str
    max_draft_tokens: int

    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        """Write drafts into ``table.tokens``, without waiting for the device.

        A row's drafts go to the positions from ``length`` on, which is ``table.lengths`` of its slot. Those beyond the
        row's own ``drafts``, but within ``rows.most``, may be written as well. Nothing else of the table is written.
        """
        ...

    def catch_up(self, chunks: Sequence[DraftChunk], table: SlotTable) -> None:
        """See the known tokens of ``chunks``, in the order of the device. Only drafters with a cache are ever asked."""
        ...
