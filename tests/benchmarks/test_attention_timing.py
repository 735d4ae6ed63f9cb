"""What the sections of attention compute: the launches that they time, compared with the reference. The times need a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernel_timing import attention, models
from kernel_timing.models import ModelSizes

from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps

MODEL = ModelSizes("small", 1, 64, 4, 2, 32, 64, 64, qk_norm=False)


class Checked:
    """Checks a case in the place of timing it."""

    def __init__(self) -> None:
        self.errors: list[float] = []

    def case(self, *_: object, check: Callable[[], float], **__: object) -> None:
        self.errors.append(check())


@pytest.mark.parametrize("sizes", [(2, 1, 100), (2, 40, 130)], ids=["decodes", "chunks"])
def test_attention_that_is_timed_is_right(sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for module in (attention, models):
        monkeypatch.setattr(module, "DEVICE", device)
        monkeypatch.setattr(module, "DTYPE", torch.float32)
    monkeypatch.setitem(models.randn.__kwdefaults__, "dtype", torch.float32)
    monkeypatch.setattr(attention, "copies_beyond_cache", lambda size, most: 1)
    bench = Checked()
    ops = TritonOps.sized(DeviceLimits.known(90, 8))
    attention.attention_case(bench, ops, MODEL, "attention", sizes, [], [])  # type: ignore[arg-type]
    assert bench.errors
    assert max(bench.errors) < 1e-5
