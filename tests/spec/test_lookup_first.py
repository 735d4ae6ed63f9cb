from __future__ import annotations

import torch
from drafters import Adversary

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftRows
from draftline.spec.lookup_first import LookupFirst


def test_a_text_that_repeats_itself_is_looked_up_and_any_other_is_not() -> None:
    table = SlotTable.allocate(3, 32, 1, torch.device("cpu"))
    texts = {
        0: [4, 5, 6, 7, 8, 4, 5, 6],  # its last three tokens have occurred
        1: [4, 5, 6, 7, 8, 9, 5, 6],  # only the last two
        2: [1, 2, 3],
    }
    for slot, text in texts.items():
        table.tokens[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
        table.lengths[slot] = len(text)
    drafter = LookupFirst(Adversary(3, lambda known, ahead: 100 + ahead), ReferenceOps())
    assert drafter.name == "ngram+adversary"
    rows = DraftRows(torch.tensor([2, 0, 1]), torch.tensor([3, 3, 3], dtype=torch.int32), 3)
    drafter.propose(rows, table)
    drafts = {slot: table.tokens[slot, len(text) : len(text) + 3].tolist() for slot, text in texts.items()}
    assert drafts == {0: [7, 8, 4], 1: [100, 101, 102], 2: [100, 101, 102]}
