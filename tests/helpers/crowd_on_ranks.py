"""The crowd of `exact_mixes` in one engine of several ranks, for a process of its own: ``python crowd_on_ranks.py JOB``.

A process divides a model between GPUs once, so the mixed engine and that of the solo runs have a process each.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from exact_mixes import Alone, Case, crowd, run_mix, start

from draftline import RequestOutput
from draftline.engine import build
from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.stats import EngineStats
from draftline.kernels.triton.compile.later import CompileLater


@dataclass(frozen=True)
class Job:
    """What a process does.

    Attributes:
        folder: of the model.
        case: of both engines.
        device: rank 0's.
        mixed: whether this is the mixed engine.
        turn: a file. The process that holds its lock runs steps.
    """

    folder: Path
    case: Case
    device: str
    mixed: bool
    turn: Path


@dataclass(frozen=True)
class Done:
    """The outputs of the crowd, of the mixed engine twice, and the engine's statistics."""

    outputs: list[list[RequestOutput]]
    stats: EngineStats


@contextmanager
def taking_turns(turn: Path) -> Iterator[None]:
    """One engine at a time. GPUs switch between processes in milliseconds, for which ranks of two engines would wait in turn."""
    with turn.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(job: Job) -> Done:
    """Start the engine, and run the crowd when it is this engine's turn."""
    if job.mixed:
        core = start(job.folder, job.case, job.device)
        with taking_turns(job.turn):
            return _ended(core, [run_mix(core, crowd()) for _ in range(2)])
    alone = Alone(job.folder, job.case, job.device)
    with taking_turns(job.turn):
        return _ended(alone.core, [[alone.run(wanted) for wanted in crowd()]])


def _ended(core: Core, outputs: list[list[RequestOutput]]) -> Done:
    stats = core.stats()
    core.close()
    return Done(outputs, stats)


def _share_devices(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be more ranks than GPUs, which a user is refused: for the order of sums, four ranks tell more than two."""
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"

    def first(config: EngineConfig) -> torch.device:
        return torch.device(device, 0)

    monkeypatch.setattr(build, "select_device", first)


def main(file: Path) -> None:
    """Do the job that a file has, and leave the result in its place."""
    job: Job = pickle.loads(file.read_bytes())
    with pytest.MonkeyPatch.context() as monkeypatch:
        # As in the other tests of GPUs: of many short engines, each would take the others' cores.
        monkeypatch.setattr(CompileLater, "start", lambda self: None)
        if job.device == "cuda" and job.case.ranks > torch.cuda.device_count():
            _share_devices(job.device, monkeypatch)
        done = run(job)
    file.write_bytes(pickle.dumps(done))


if __name__ == "__main__":
    # By its own name, so that the processes agree on the classes in the file.
    import crowd_on_ranks

    crowd_on_ranks.main(Path(sys.argv[1]))
