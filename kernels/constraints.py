"""The constraint table: the device's data for masking constrained rows without the host.

An automaton's states are records in one array of words, and a state is its record's address. Transitions, masks and
forced drafts are look-ups, which need neither the host nor fixed sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.kernels.zeros import zeros

FREE = 0
"""The state of a slot without a constraint: the address of a record that allows everything."""

HOST = -1
"""The state of a slot whose masks the host writes."""

MASK, BUDGETS, DRAFTS, NEXT = 0, 1, 2, 3
"""A state's record, by word: the row of its mask; the address of its masks by distance (0: none); the address of its
forced tokens (0: none); then, by class of token, the address of the next state (0: not allowed).

The address of masks by distance is negative in the states of reasoning: their distances lead to its end, not to the
text's. Masks by distance are a count, then pairs of a distance and a mask's row, distances ascending. A mask allows the
tokens after which an accepting state is at most that many tokens away. Forced tokens are a count, then the tokens.
"""


RESERVED = NEXT
"""The first words, always 0: the record of FREE. Its mask is not shared with other states."""


@dataclass(frozen=True, slots=True)
class ConstraintTable:
    """Automata and masks, and each slot's state.

    Attributes:
        words: [A] int32: records, and for each automaton the classes of its tokens, two to a word, the even token's in
            the low half.
        masks: [N, ceil(vocab / 32)] int32, see `Masks`.
        states: [S] int32, each slot's state: an address, FREE or HOST.
        classes: [S] int32, the address of the token classes of each slot's automaton.
        ends: [S, 2] int32, where a slot's states have masks by distance: the position before which its text must be
            complete, and that before which its reasoning must have ended.
        host_masks: the first row of ``masks`` that the host writes: those of slot s begin at
            ``host_masks + s * host_samples``.
        host_samples: how many of these rows each slot has: the most positions that a step samples for it.
    """

    words: Tensor
    masks: Tensor
    states: Tensor
    classes: Tensor
    ends: Tensor
    host_masks: int
    host_samples: int

    @staticmethod
    def allocate(
        num_slots: int, vocab: int, *, words: int, masks: int, samples: int, device: torch.device
    ) -> ConstraintTable:
        """A table without automata, for slots that are all free.

        Args:
            num_slots: S.
            vocab: the width of the logits.
            words: room for records and token classes.
            masks: room for the automata's masks; the first one allows everything.
            samples: the most positions that a step samples for one slot.
            device: the table's device.
        """

        def ints(*shape: int) -> Tensor:
            return zeros(shape, torch.int32, device)

        rows = ints(masks + num_slots * samples, -(-vocab // 32))
        rows[0] = -1
        return ConstraintTable(
            words=ints(words),
            masks=rows,
            states=ints(num_slots),
            classes=ints(num_slots),
            ends=ints(num_slots, 2),
            host_masks=masks,
            host_samples=samples,
        )


@dataclass(frozen=True, slots=True)
class SampleConstraints:
    """The constraints of a step's sampled positions.

    Attributes:
        mask_rows: [S] int32, the row of `ConstraintTable.masks` for each.
        states: [S] int32, the state at each, assuming that its row's earlier drafts are accepted.
    """

    mask_rows: Tensor
    states: Tensor
