from __future__ import annotations

import numpy as np
import pytest
from byte_automata import compile_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.structured.automaton import rows as rows_module
from draftline.structured.automaton.rows import SparseRows, equal_rows, offsets


def sparse(rows: list[dict[int, int]]) -> SparseRows:
    pairs = [pair for row in rows for pair in sorted(row.items())]
    return SparseRows(
        offsets(np.array([len(row) for row in rows], np.int64)),
        np.array([source for source, _ in pairs], np.int32),
        np.array([target for _, target in pairs], np.int32),
    )


def as_dict(rows: SparseRows, index: int) -> dict[int, int]:
    span = slice(rows.first[index], rows.first[index + 1])
    return dict(zip(rows.source[span].tolist(), rows.target[span].tolist(), strict=True))


ROWS = st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 2), max_size=3), max_size=12)


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_distinct_rows_are_the_rows_without_repeats(rows: list[dict[int, int]]) -> None:
    distinct, which = sparse(rows).distinct()
    assert [as_dict(distinct, index) for index in which.tolist()] == rows
    assert as_dict(distinct, 0) == {}
    named = [tuple(sorted(as_dict(distinct, index).items())) for index in range(len(distinct))]
    assert len(set(named)) == len(named)


def test_rows_with_one_key_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = rows_module.mixed
    calls: list[int] = []

    def colliding(values: np.ndarray) -> np.ndarray:
        calls.append(len(values))
        return np.zeros_like(values) if len(calls) == 1 else honest(values)

    monkeypatch.setattr(rows_module, "mixed", colliding)
    distinct, which = sparse([{0: 1}, {0: 2}, {0: 1}]).distinct()
    assert len(calls) == 2
    assert [as_dict(distinct, index) for index in which.tolist()] == [{0: 1}, {0: 2}, {0: 1}]
    monkeypatch.setattr(rows_module, "_FACTORS", np.zeros(4, np.int64))
    assert equal_rows(np.array([[1, 2], [2, 1], [1, 2]]))[1].tolist() in ([0, 1, 0], [1, 0, 1])


def test_equivalent_states_of_a_long_bounded_text_are_merged() -> None:
    # The states of both alternatives are equivalent, and only a round for each character shows it.
    automaton = compile_bytes("a[xy]{0,300}|b[xy]{0,300}", 10_000)
    assert automaton.states == 302
