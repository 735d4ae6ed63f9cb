"""On a CPU a row's result has the same bits whatever it is batched with."""

from __future__ import annotations

import pytest
import torch
from exact_cpu import EXACT
from gguf import GGMLQuantizationType
from gguf.quants import quantize as gguf_quantize
from torch import Tensor

from draftline import quant
from draftline.quant.half import HalfLinear, padding_rows, rows_to_run
from draftline.quant.prepacked import PrepackedLinear
from draftline.quant.tensor import RawTensor

CPU = torch.device("cpu")
COUNTS = [*range(1, 20), 31, 32, 33, 64, 127, 128, 200, 257]
needs_fbgemm = pytest.mark.skipif(padding_rows() is None, reason="torch has no usable FBGEMM on this CPU")


def weight(rows: int, columns: int) -> Tensor:
    return 0.05 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def inputs(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))


@needs_fbgemm
@pytest.mark.parametrize(("outputs", "width"), [(48, 64), (33, 48), (100, 1030), (576, 576)])
def test_half(outputs: int, width: int) -> None:
    padding = padding_rows()
    assert padding is not None
    linear = HalfLinear(weight(outputs, width), torch.arange(outputs) / 8, torch.float32, padding)
    x = inputs(300, width)
    together = linear(x)
    for count in COUNTS:
        for start in (0, 1, 17, 300 - count):
            assert torch.equal(linear(x[start : start + count]), together[start : start + count])


@needs_fbgemm
def test_half_beyond_the_counts_that_were_tried() -> None:
    padding = padding_rows()
    assert padding is not None
    linear = HalfLinear(weight(48, 64), None, torch.float32, padding)
    x = inputs(1500, 64)
    together = linear(x)
    for count in (*range(513, 760), 1021, 1022, 1111, 1499):
        assert torch.equal(linear(x[:count]), together[:count])


@needs_fbgemm
def test_padded_counts_need_no_padding() -> None:
    padding = padding_rows()
    assert padding is not None
    for count in range(1000):
        rows = rows_to_run(count)
        assert rows >= count
        assert rows_to_run(rows) == rows
    assert rows_to_run(0) == 0


def test_int4() -> None:
    blocks = gguf_quantize(weight(96, 320).numpy(), GGMLQuantizationType.Q4_1)
    tensor = RawTensor("w", "Q4_1", (96, 320), torch.from_numpy(blocks))
    linear = quant.make_linear([tensor], None, dtype=torch.bfloat16, device=CPU)
    x = inputs(300, 320).bfloat16()
    together = linear(x)
    for count in COUNTS:
        assert torch.equal(linear(x[17 : 17 + count]), together[17 : 17 + count])


@pytest.mark.parametrize(("outputs", "width"), [(96, 320), (576, 1024), (33, 1030), (576, 1536), (64, 8192)])
def test_prepacked(outputs: int, width: int) -> None:
    linear = PrepackedLinear(weight(outputs, width), torch.arange(outputs) / 8, torch.float32)
    x = inputs(300, width)
    together = linear(x)
    for count in COUNTS:
        alone, batched = linear(x[17 : 17 + count]), together[17 : 17 + count]
        assert torch.equal(alone, batched) or not EXACT
        torch.testing.assert_close(alone, batched, rtol=1e-5, atol=1e-6)
    assert linear(x[:0]).shape == (0, outputs)


def test_a_weight_beyond_float16_is_kept_in_float32() -> None:
    large = weight(8, 64)
    large[3, 5] = 1e5
    linear = quant.make_linear([RawTensor("w", "F32", (8, 64), large)], None, dtype=torch.float16, device=CPU)
    assert linear.format == "float32"
    assert linear(torch.ones(1, 64))[0, 3].item() == pytest.approx(float(large[3].double().sum()))
