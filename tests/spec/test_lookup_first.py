from __future__ import annotations

import pytest
import torch
from drafters import Adversary

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftRows
from draftline.spec.lookup_first import LookupFirst, LookupInstead


@pytest.mark.parametrize("kind", [LookupFirst, LookupInstead])
def test_a_text_that_repeats_itself_is_looked_up_and_any_other_is_not(kind: type[LookupFirst]) -> None:
    table = SlotTable.allocate(3, 32, 1, torch.device("cpu"))
    texts = {
        0: [4, 5, 6, 7, 8, 4, 5, 6],  # its last three tokens have occurred
        1: [4, 5, 6, 7, 8, 9, 5, 6],  # only the last two
        2: [1, 2, 3],
    }
    for slot, text in texts.items():
        table.tokens[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
        table.lengths[slot] = len(text)
    drafter = kind(Adversary(3, lambda known, ahead: 100 + ahead), ReferenceOps())
    assert drafter.name == "ngram+adversary"
    rows = DraftRows(torch.tensor([2, 0, 1]), torch.tensor([3, 3, 3], dtype=torch.int32), 3)
    drafter.propose(rows, table)
    drafts = {slot: table.tokens[slot, len(text) : len(text) + 3].tolist() for slot, text in texts.items()}
    assert drafts == {0: [7, 8, 4], 1: [100, 101, 102], 2: [100, 101, 102]}


def test_rows_with_looked_up_drafts_take_one_pass_of_the_other_drafter() -> None:
    table = SlotTable.allocate(2, 32, 1, torch.device("cpu"))
    table.tokens[0, :8] = torch.tensor([4, 5, 6, 7, 8, 4, 5, 6], dtype=torch.int32)
    table.tokens[1, :3] = torch.tensor([1, 2, 3], dtype=torch.int32)
    table.lengths[:] = torch.tensor([8, 3])
    asked: list[tuple[list[int], int]] = []

    class Other(Adversary):
        def propose(self, rows: DraftRows, table: SlotTable) -> None:
            asked.append((rows.drafts.tolist(), rows.max_drafts))
            super().propose(rows, table)

    drafter = LookupInstead(Other(3, lambda known, ahead: 100 + ahead), ReferenceOps())
    both, one = torch.tensor([0, 1]), torch.tensor([0])
    drafter.propose(DraftRows(both, torch.tensor([3, 2], dtype=torch.int32), 3), table)
    drafter.propose(DraftRows(one, torch.tensor([3], dtype=torch.int32), 3), table)
    assert asked == [([1, 2], 2), ([1], 1)]
    assert table.tokens[0, 8:11].tolist() == [7, 8, 4]
    assert table.tokens[1, 3:5].tolist() == [100, 101]
