"""Matrices with other numbers of rows, in every format: the values of the rows that stay are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from random_checkpoint import RandomCheckpoint, llama

from draftline.quant import dequantize
from draftline.quant.fp8 import fp8_rows
from draftline.quant.tensor import RawTensor, Scales

NAME = "model.layers.0.mlp.down_proj.weight"


def matrix(weight_format: str) -> RawTensor:
    """[32, 64]."""
    if weight_format.startswith("Q"):
        return RandomCheckpoint(llama(), std=0.3, weight_format=weight_format).tensor(NAME)
    raw = RandomCheckpoint(llama(), std=0.3).tensor(NAME)
    if weight_format == "BF16":
        return replace(raw, format="BF16", data=raw.data.bfloat16())
    data, scales = fp8_rows(raw.data)
    return replace(raw, format="F8_E4M3", data=data, scales=Scales(scales.view(-1, 1), 1, 64))


@pytest.mark.parametrize("weight_format", ["F32", "BF16", "F8_E4M3", "Q4_0", "Q8_0"])
def test_other_numbers_of_rows(weight_format: str) -> None:
    raw = matrix(weight_format)
    whole = dequantize(raw)
    shorter, longer = raw.with_rows(30), raw.with_rows(35)
    assert (shorter.shape, longer.shape) == ((30, 64), (35, 64))
    assert torch.equal(dequantize(shorter), whole[:30])
    assert torch.equal(dequantize(longer)[:32], whole)
    assert not dequantize(longer)[32:].any()


def test_rows_of_blocks_with_a_scale() -> None:
    raw = matrix("F8_E4M3")
    for rows, scales in ((16, 2), (12, 3), (32, 1)):
        blocks = replace(raw, scales=Scales(torch.arange(1.0, scales + 1).view(-1, 1), rows, 64))
        whole = dequantize(blocks)
        assert torch.equal(dequantize(blocks.with_rows(20)), whole[:20])
        assert torch.equal(dequantize(blocks.with_rows(50))[:32], whole)
