"""Layers that threads build: in order, side by side, and with the error of the first that fails."""

from __future__ import annotations

from threading import Barrier

import pytest
import torch

from draftline.models.layers import build_layers

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize("device", [CPU, META], ids=["cpu", "other"])
def test_layers_are_in_order(device: torch.device) -> None:
    assert build_layers(lambda index: f"layer {index}", 9, device) == tuple(f"layer {index}" for index in range(9))
    assert build_layers(str, 0, device) == ()


def test_a_cpu_builds_two_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    both = Barrier(2, timeout=60)

    def build(index: int) -> int:
        both.wait()
        return index

    assert build_layers(build, 4, CPU) == (0, 1, 2, 3)


def test_the_first_layer_that_fails_is_named() -> None:
    def build(index: int) -> int:
        if index in (3, 5):
            raise ValueError(f"layer {index}")
        return index

    with pytest.raises(ValueError, match="layer 3"):
        build_layers(build, 8, CPU)
