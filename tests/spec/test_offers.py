from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftline.spec.acceptance_rates import DRAWN, GREEDY
from draftline.spec.offers import DraftingRow, DraftingRows, Expected, Offers, RowAcceptance
from draftline.spec.step_costs import CatchUpCost

_RATES = st.lists(st.floats(0.01, 1.2), min_size=6, max_size=6)
_SECONDS = st.floats(0.0, 1e-2)


@st.composite
def rows(draw: st.DrawFn) -> DraftingRow:
    expected = draw(st.floats(0.0, 50.0))
    return DraftingRow(
        RowAcceptance(draw(st.floats(0.0, 60.0)), expected, expected, draw(st.sampled_from([GREEDY, DRAWN]))),
        draw(st.sampled_from([0, 1, 30, 2000])),
        draw(st.floats(0.0, 500.0)),
        draw(st.integers(0, 4000)),
        draw(st.floats(1.0, 200.0)),
    )


@given(
    st.lists(rows(), min_size=1, max_size=5),
    st.tuples(_RATES, _RATES),
    st.integers(0, 6),
    st.floats(1.0, 1e5),
    _SECONDS,
    st.data(),
)
def test_one_row_has_the_budget_that_it_has_among_others(
    some: list[DraftingRow],
    rates: tuple[list[float], list[float]],
    longest: int,
    price: float,
    another: float,
    data: st.DataObject,
) -> None:
    expected = [Expected(of_kind, data.draw(st.floats(0.0, 40.0))) for of_kind in rates]
    together = data.draw(st.integers(1, 64))
    catch_up = CatchUpCost(data.draw(_SECONDS), data.draw(st.floats(0.0, 1e-5)))
    offer = Offers(np.array([longest]), np.array([price]), np.array([another]), catch_up, together)
    budgets, _ = offer.budgets(DraftingRows.of(some, expected))
    assert [offer.budget(row, expected) for row in some] == budgets[0].tolist()
