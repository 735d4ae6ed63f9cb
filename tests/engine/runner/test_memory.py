"""A GPU that is too small for a model: what the errors say helps there."""

from __future__ import annotations

import pytest
import torch
from random_checkpoint import RandomCheckpoint, llama

from draftline.engine.config import EngineConfig
from draftline.engine.parallel import target
from draftline.engine.parallel.target import Target
from draftline.engine.runner import device
from draftline.engine.runner.memory import GIB, OutOfMemoryAtStartError, gpu_cache_bytes
from draftline.kernels.reference.ops import ReferenceOps
from draftline.models.parallel.shard import WHOLE

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def six_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of 6 GiB, of which its driver takes half of one."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(1.5 * GIB), 6 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 4 * GIB)


@pytest.mark.parametrize(("capability", "formats"), [((8, 6), "int8"), ((8, 9), "fp8 or int8")])
def test_weights_without_room_are_told_a_format_that_the_gpu_has(
    capability: tuple[int, int], formats: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_model(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(device._GPU, "at", lambda index: device._GPU(index, "a GPU", capability, 6 * GIB))
    monkeypatch.setattr(target, "build_model", build_model)
    config = EngineConfig(model="a model", dtype="bfloat16")
    with pytest.raises(OutOfMemoryAtStartError) as caught:
        Target.load(config, RandomCheckpoint(llama(), std=0.1), CUDA, ReferenceOps(), WHOLE)
    assert f"(quantization {formats}) take less" in str(caught.value)
    assert "of its 6.0 GiB, this process has taken 4.0 until then, the driver and other processes take 0.5" in str(
        caught.value
    )


def test_the_cache_has_what_weights_and_the_largest_step_leave() -> None:
    assert gpu_cache_bytes(CUDA, 0.9, 3 * GIB) == int(5.4 * GIB) - int(3.5 * GIB)
    with pytest.raises(OutOfMemoryAtStartError) as caught:
        gpu_cache_bytes(CUDA, 0.9, 5 * GIB)
    for part in ("take 5.0, and the driver and other processes 0.5", "Raise gpu_memory_utilization.", "quantization"):
        assert part in str(caught.value)
