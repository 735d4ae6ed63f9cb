"""``Drafter``: what guesses the next tokens of the decoding sequences, before the target model verifies them.

A drafter works on slots, never on sequences, and leaves its guesses in the slot table, behind each sequence's known
tokens, whose number only the device need know. So the step is the same whatever drafts, and "no speculation" is a
drafter that proposes nothing.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from draftline.kernels.slots import SlotTable


class Drafter(Protocol):
    """Proposes tokens. Whatever it proposes, the output stays what plain decoding gives.

    Attributes:
        name: as it is chosen and reported.
        max_draft_tokens: the most that it is asked for at once.
    """

    name: str
    max_draft_tokens: int

    def propose(self, slots: Tensor, count: int, table: SlotTable) -> None:
        """Write drafts into ``table.tokens``, without waiting for the device.

        Args:
            slots: [R] int64, the slots that want drafts. One may come up more than once.
            count: how many each gets, at least one: to positions ``length`` to ``length + count - 1``, where ``length``
                is ``table.lengths`` of its slot.
            table: the slot table; nothing else of it is written.
        """
        ...
