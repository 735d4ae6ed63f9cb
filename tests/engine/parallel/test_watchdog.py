"""Ranks that end or hang before they have found each other, or while they do: rank 0 gets one error, and does not wait for them."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
from patience import PATIENCE_S, wait_until

from draftline.engine.config import EngineConfig
from draftline.engine.errors import DeviceLostError
from draftline.engine.parallel import leader


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, "rank 1 ended with -9"), (signal.SIGSTOP, "rank 1 hangs: no sign of life")]
)
def test_a_rank_that_is_lost_while_it_starts_is_named(
    number: signal.Signals, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader, "_LOADING", 0.1)
    ranks = leader.Ranks(EngineConfig(model="none", tensor_parallel_size=2), torch.device("cpu"))
    [process] = ranks._processes
    os.kill(process.pid, number)
    with pytest.raises(DeviceLostError, match=reason), ranks:
        ranks.join()
    assert process.returncode == -signal.SIGKILL
    assert not caplog.records, "the caller prints the error"


def test_a_rank_that_is_lost_while_the_engine_runs_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ranks = leader.Ranks(EngineConfig(model="none", tensor_parallel_size=2), torch.device("cpu"))
    lost = threading.Event()
    ranks.when_lost(lost.set)
    with ranks:
        os.kill(ranks._processes[0].pid, signal.SIGKILL)
        assert lost.wait(PATIENCE_S)
    assert caplog.messages == ["rank 1 ended with -9, so the engine cannot go on"]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "rank 1 ended with -9"),
        # By default, a rank hangs while it starts: the same thread sees both.
        pytest.param(signal.SIGSTOP, "rank 1 hangs: no sign of life", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_lost_while_they_meet_is_named(
    number: signal.Signals, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of rank 0 goes on with the error, though nothing breaks off the meeting."""
    ranks = leader.Ranks(EngineConfig(model="none", tensor_parallel_size=2), torch.device("cpu"))
    [process] = ranks._processes
    wait_until(lambda: (ranks._folder / "store").exists())  # rank 1 waits there for rank 0

    def meet(*_: object) -> None:
        """As the real one would: rank 1 does not answer."""
        os.kill(process.pid, number)
        threading.Event().wait()

    monkeypatch.setattr(leader, "meet", meet)
    monkeypatch.setattr(leader, "_LOADING", 0.1)
    with pytest.raises(DeviceLostError, match=reason), ranks:
        ranks.join()
    assert process.returncode == -signal.SIGKILL
