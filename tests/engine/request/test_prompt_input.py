"""Prompts of token ids, as arrays and as lists: one prompt, or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from draftline.engine.errors import InvalidRequestError
from draftline.engine.request.prompt_input import as_prompt, as_prompts

MAKERS = pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor], ids=["list", "tuple", "numpy", "torch"])


@MAKERS
def test_numbers_are_one_prompt(make: Callable[[list[int]], Any]) -> None:
    assert as_prompts(make([3, 4])) == [([3, 4], "")]


@MAKERS
def test_lists_of_numbers_are_several(make: Callable[[list[int]], Any]) -> None:
    """Also of one number each."""
    assert as_prompts([make([3, 4]), make([5])]) == [([3, 4], "prompts[0]"), ([5], "prompts[1]")]
    assert as_prompts([make([3]), make([4])]) == [([3], "prompts[0]"), ([4], "prompts[1]")]


def test_the_rows_of_a_matrix_are_several() -> None:
    assert as_prompts(np.array([[1, 2], [3, 4]])) == [([1, 2], "prompts[0]"), ([3, 4], "prompts[1]")]


@pytest.mark.parametrize(
    "prompts",
    [
        torch.tensor([1.0, 2.0]),
        torch.tensor([[1.0]]),
        [3, torch.tensor(4.0)],
        np.array([1.0]),
        torch.tensor(3),
        np.array(3),
    ],
    ids=str,
)
def test_fractions_and_single_numbers_are_no_prompts(prompts: Any) -> None:
    with pytest.raises(InvalidRequestError, match="must be"):
        as_prompts(prompts)
    with pytest.raises(InvalidRequestError, match="must be"):
        as_prompt({"prompt_token_ids": prompts})


def test_every_integer_becomes_an_int() -> None:
    ((prompt, _),) = as_prompts([np.int64(3), 4, torch.tensor(5), np.array(6)])
    assert prompt == [3, 4, 5, 6]
    assert {type(token) for token in prompt} == {int}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, True], "token_ids.ids[1]: must be an int, not a bool"),
        ([1, 2, 2.5], "token_ids.ids[2]: must be an int, not a float"),
        ([1, np.array([2])], "token_ids.ids[1]: must be an int, not a ndarray"),
        ([np.array([1]), np.array([2])], "token_ids.ids[0]: must be an int, not a ndarray"),
        ([1, 2**32], "token_ids.ids[1]: 4294967296 is not a token id"),
        ([1] * 99 + [-1], "token_ids.ids[99]: -1 is not a token id"),
    ],
)
def test_what_is_no_token_id_is_named(ids: list[object], message: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        as_prompt(ids)
    assert str(error.value) == message
