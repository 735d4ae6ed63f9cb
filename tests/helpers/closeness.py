"""How far apart rounding alone can take two computations of the same values.

A tolerance chosen by hand holds on the machine it was chosen on: other CPUs have other kernels, which add in another
order. These bounds follow from the dtype and from what is added, so they hold for every order of the additions, and
they stay far below the error of a wrong mask or a missing head.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

_DEVIATIONS = 8.0
"""The allowed standard deviations of rounding errors: two computations have two errors, and tests look at many."""

_NUDGE_ROUNDOFFS = 128
"""The size of the changes of `nudged` in roundoffs: so large that float32 shows their effect and not its own errors."""

_Module = TypeVar("_Module", bound=nn.Module)


def roundoff(dtype: torch.dtype) -> float:
    """The largest relative error of rounding to ``dtype`` once."""
    return torch.finfo(dtype).eps / 2


def assert_sums_close(actual: Tensor, expected: Tensor, squares: Tensor, terms: int) -> None:
    """Two sums of the same terms, whatever order they are added in.

    Every addition rounds a partial sum. Partial sums of terms with random signs are as large as the root of the sum of
    their squares, and the errors of ``terms`` additions grow like the root of their number.

    Args:
        actual: one sum, in the dtype that it was added up in.
        expected: the other, in the same dtype or a wider one.
        squares: of each sum, the sum of its terms' squares; of a matrix product `x.square() @ w.square()`.
        terms: how many terms a sum has.
    """
    bound = _DEVIATIONS * roundoff(actual.dtype) * (terms * squares.double()).sqrt()
    assert_within(actual, expected, bound)


def assert_within(actual: Tensor, expected: Tensor, bound: Tensor) -> None:
    """No element is further from the expected one than its bound, and none is NaN."""
    error = (actual.double() - expected.double()).abs()
    assert actual.shape == expected.shape
    assert (error <= bound).all(), f"the error is up to {float((error / bound).max()):.2f} times its bound"


def nudged(model: _Module) -> _Module:
    """A copy of a model whose every weight has a random relative change of some 128 roundoffs."""
    changed, draw = copy.deepcopy(model), torch.Generator().manual_seed(0)
    for parameter in changed.parameters():
        size = _NUDGE_ROUNDOFFS * roundoff(torch.float32)
        parameter.data *= 1 + size * torch.randn(parameter.shape, generator=draw)
    return changed


def assert_model_close(actual: Tensor, expected: Tensor, of_nudged: Tensor) -> None:
    """Two float32 forward passes of one model.

    A model amplifies rounding errors by its weights: sharp attention more than flat attention. A rounding is like a
    change of a weight in its last bit. So the effect of random changes of all weights shows the effect of all roundings.
    Seen on several CPUs: root mean squares of 1 to 5 times that effect, and largest errors of 1 to 7 times its largest.

    Args:
        actual: the result to check.
        expected: another computation of the same.
        of_nudged: the expected result of the `nudged` model.
    """
    assert actual.dtype == torch.float32
    assert actual.shape == expected.shape
    error = actual.double() - expected.double()
    effect = (of_nudged.double() - expected.double()) / _NUDGE_ROUNDOFFS
    bound = _DEVIATIONS * effect.square().mean().sqrt()
    found = error.square().mean().sqrt()
    assert found <= bound, f"the root mean square error is {found:.2e}, but rounding explains only {bound:.2e}"
    largest = rounding(expected, of_nudged)
    assert error.abs().max() <= largest, f"the error is up to {error.abs().max():.2e}; rounding explains {largest:.2e}"


def rounding(expected: Tensor, of_nudged: Tensor) -> float:
    """How far any element of two float32 forward passes may be apart: see `assert_model_close`."""
    return 2 * _DEVIATIONS * float((of_nudged.double() - expected.double()).abs().max()) / _NUDGE_ROUNDOFFS
