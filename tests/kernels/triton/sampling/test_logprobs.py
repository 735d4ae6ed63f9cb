from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.reference import sampling
from draftline.kernels.triton.sampling.logprobs import logprobs

# The interpreter's numpy warns where the device's arithmetic just returns infinity or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def assert_same(logits: Tensor, token_ids: Tensor, top: int) -> None:
    chosen, ranks, top_ids, top_values = logprobs(logits, token_ids, top)
    expected = sampling.logprobs(logits, token_ids, top)
    assert_close(chosen, expected[0], rtol=1e-5, atol=1e-5)
    assert ranks.tolist() == expected[1].tolist()
    assert top_ids.tolist() == expected[2].tolist()
    assert_close(top_values, expected[3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize(("vocab", "top"), [(50, 0), (12, 12), (1100, 5), (3000, 9)])
def test_logprobs(vocab: int, top: int, ties: bool, device: torch.device, rng: torch.Generator) -> None:
    logits = 3 * torch.randn(3, vocab, generator=rng, device=device)
    if ties:
        logits = logits.round()
    assert_same(logits, torch.randint(0, vocab, (3,), generator=rng, device=device), top)


def test_odd_logits(device: torch.device, rng: torch.Generator) -> None:
    logits = torch.randn(6, 90, generator=rng, device=device)
    logits[0, 3] = math.nan
    logits[1] = -math.inf
    logits[2, [7, 70]] = math.inf
    logits[3, 1:] = -math.inf
    logits[4] = 2.0
    logits[5, [7, 70]] = math.inf
    assert_same(logits, torch.tensor([3, 8, 70, 5, 80, 6], device=device), 4)


def test_more_top_tokens_than_the_vocabulary_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="top is 9, but the vocabulary has 8 tokens"):
        logprobs(torch.zeros(1, 8, device=device), torch.zeros(1, dtype=torch.int64, device=device), 9)
