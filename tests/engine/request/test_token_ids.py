"""The range of many token ids, against Python's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftline.engine.request.token_ids import least_and_most


@given(st.lists(st.integers(-(2**70), 2**70) | st.sampled_from([-1, 0, 2**32 - 1, 2**32]), min_size=1))
def test_any_integers(ids: list[int]) -> None:
    assert least_and_most(ids) == (min(ids), max(ids))


@pytest.mark.parametrize("ids", [(7, 3, 2**32 - 1), {5: 0.1, 2: 0.2}, range(3, 2000)], ids=["tuple", "dict", "range"])
def test_any_collection(ids: dict[int, float]) -> None:
    assert least_and_most(ids) == (min(ids), max(ids))
