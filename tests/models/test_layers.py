from __future__ import annotations

import torch
from torch import Tensor

from draftline.kernels.batch import Batch
from draftline.kernels.reference.ops import ReferenceOps
from draftline.models.layers import wanted_states


def batch(query_lens: tuple[int, ...], logits_index: list[int]) -> Batch:
    none = torch.empty(0, dtype=torch.int32)
    index = torch.tensor(logits_index)
    lens = query_lens, (64,) * len(query_lens)
    return Batch(none.long(), none.long(), none.long(), none, none, none, index, *lens)


def test_the_rows_that_are_wanted() -> None:
    residual = torch.arange(48.0).view(6, 8)

    def wanted(query_lens: tuple[int, ...], logits_index: list[int]) -> Tensor:
        return wanted_states(residual, batch(query_lens, logits_index), ReferenceOps())

    assert torch.equal(wanted((3, 1), [2, 3]), residual[[2, 3]])
    assert torch.equal(wanted((1, 3), [0, 1, 2, 3]), residual[:4]), "all, and two rows of padding"
    # A graph of six tokens in which any row may be a prompt: as many are wanted as it has, in any order.
    assert torch.equal(wanted((6, 1), [2, 5, 0, 0, 0, 0]), residual[[2, 5, 0, 0, 0, 0]])
