"""Ranks that end or hang before they have found each other: rank 0 gets one error, and does not wait for them."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from draftline.engine.config import EngineConfig
from draftline.engine.errors import DeviceLostError
from draftline.engine.parallel import leader


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, "rank 1 ended with -9"), (signal.SIGSTOP, "rank 1 hangs: no sign of life")]
)
def test_a_rank_that_is_lost_while_it_starts_is_named(
    number: signal.Signals, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "_LOADING", 0.1)
    ranks = leader.Ranks(EngineConfig(model="none", tensor_parallel_size=2), torch.device("cpu"))
    [process] = ranks._processes
    os.kill(process.pid, number)
    with pytest.raises(DeviceLostError, match=reason), ranks:
        ranks.join()
    assert process.returncode == -signal.SIGKILL
