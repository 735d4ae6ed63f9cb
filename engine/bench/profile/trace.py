"""``TraceSummary``: a Chrome trace of torch's profiler, summed up by kernel and by part of the step.

`StepProfiler` marks the parts of steps in the trace. A GPU's kernels belong to the part that launched them, alone or in
a graph: the trace gives a launch and its kernels the same number. On a CPU the operations themselves take the kernels'
place, each with its own time, without that of the operations within it.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftline.engine.errors import UsageError
from draftline.engine.runner.profiler import PREFIX

Event = Mapping[str, Any]

_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_STEPS = {f"{PREFIX}forward", f"{PREFIX}step"}
"""The parts of which each step has one: by operation, or in parts, and whole."""

OTHER = "other"
"""The part of what no part of a step launched."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All runs of a kernel in one part of the step; on a CPU, of an operation.

    Attributes:
        name: the kernel's.
        part: of the step.
        calls: how often it ran.
        us: how long, together, in microseconds.
    """

    name: str
    part: str
    calls: int
    us: float


@dataclass(frozen=True, slots=True)
class PartTime:
    """One part of the steps, in microseconds of all steps together.

    Attributes:
        name: of the part.
        host_us: on the host.
        device_us: of the GPU work that it launched; on a CPU, of its operations.
        kernels: how many kernels it launched; on a CPU, operations.
    """

    name: str
    host_us: float
    device_us: float
    kernels: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A trace.

    Attributes:
        steps: steps in it.
        span_us: from the first event of a step to the last.
        busy_us: the time in which the GPU computed anything; on a CPU, in which any operation ran.
        parts: in the order of the step.
        kernels: the longest first.
    """

    steps: int
    span_us: float
    busy_us: float
    parts: Sequence[PartTime]
    kernels: Sequence[KernelTime]

    @staticmethod
    def read(path: Path) -> TraceSummary:
        """Sum up a trace file, compressed or not.

        Raises:
            UsageError: it cannot be read, or has no step.
        """
        try:
            data = path.read_bytes()
            text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            events = json.loads(text)["traceEvents"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path}: is no Chrome trace of torch's profiler: {error}") from error
        return TraceSummary.of(events, str(path))

    @staticmethod
    def of(events: Iterable[Event], where: str = "the trace") -> TraceSummary:
        """Sum up a trace's events.

        Raises:
            UsageError: no step ran while it was recorded.
        """
        complete = [event for event in events if event.get("ph") == "X"]
        marks = sorted(
            (event for event in complete if event.get("cat") == "user_annotation" and event["name"].startswith(PREFIX)),
            key=lambda event: float(event["ts"]),
        )
        steps = sum(event["name"] in _STEPS for event in marks)
        if not steps:
            raise UsageError(f"{where}: no step ran while it was recorded")
        parts = _Parts(marks)
        work = _gpu_work(complete, parts) or _cpu_work(complete, parts)
        return TraceSummary(
            steps=steps,
            span_us=_end(max([*marks, *(event for event, _, _ in work)], key=_end)) - float(marks[0]["ts"]),
            busy_us=_covered([event for event, _, _ in work]),
            parts=parts.times(work),
            kernels=_by_kernel(work),
        )


_Work = list[tuple[Event, str, float]]
"""Kernels or operations, each with its part and its own time in microseconds."""


class _Parts:
    """The marks of parts, which do not overlap in one thread."""

    def __init__(self, marks: Sequence[Event]) -> None:
        self._marks = marks
        self._threads: dict[object, tuple[list[float], list[Event]]] = {}
        for mark in marks:
            starts, of_thread = self._threads.setdefault(mark["tid"], ([], []))
            starts.append(float(mark["ts"]))
            of_thread.append(mark)

    def at(self, event: Event) -> str:
        """The part in which an event of the host began."""
        starts, marks = self._threads.get(event["tid"], ([], []))
        index = bisect_right(starts, float(event["ts"])) - 1
        if index < 0 or _end(marks[index]) < float(event["ts"]):
            return OTHER
        return str(marks[index]["name"]).removeprefix(PREFIX)

    def times(self, work: _Work) -> list[PartTime]:
        """The parts that there are, in the order in which they first appear."""
        host: dict[str, float] = defaultdict(float)
        for mark in self._marks:
            host[str(mark["name"]).removeprefix(PREFIX)] += float(mark["dur"])
        device: dict[str, float] = defaultdict(float)
        kernels: dict[str, int] = defaultdict(int)
        for _, part, us in work:
            device[part] += us
            kernels[part] += 1
        names = [*host, *(name for name in device if name not in host)]
        return [PartTime(name, host[name], device[name], kernels[name]) for name in names]


def _gpu_work(events: Sequence[Event], parts: _Parts) -> _Work:
    launches = {
        event["args"]["correlation"]: parts.at(event)
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    return [
        (event, launches.get(event.get("args", {}).get("correlation"), OTHER), float(event["dur"]))
        for event in events
        if event.get("cat") in _ON_GPU
    ]


def _cpu_work(events: Sequence[Event], parts: _Parts) -> _Work:
    """The operations of the threads that run steps, each without the time of those within it."""
    by_thread: dict[object, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            by_thread[event["tid"]].append(event)
    work: _Work = []
    for of_thread in by_thread.values():
        of_thread.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))
        own = [float(event["dur"]) for event in of_thread]
        open_ones: list[int] = []
        for index, event in enumerate(of_thread):
            while open_ones and _end(of_thread[open_ones[-1]]) <= float(event["ts"]):
                open_ones.pop()
            if open_ones:
                own[open_ones[-1]] -= float(event["dur"])
            open_ones.append(index)
        work += [
            (event, part, max(0.0, us))
            for event, us in zip(of_thread, own, strict=True)
            if (part := parts.at(event)) != OTHER
        ]
    return work


def _by_kernel(work: _Work) -> list[KernelTime]:
    calls: dict[tuple[str, str], int] = defaultdict(int)
    times: dict[tuple[str, str], float] = defaultdict(float)
    for event, part, us in work:
        calls[str(event["name"]), part] += 1
        times[str(event["name"]), part] += us
    found = [KernelTime(name, part, calls[name, part], us) for (name, part), us in times.items()]
    return sorted(found, key=lambda kernel: -kernel.us)


def _covered(events: Sequence[Event]) -> float:
    """The time in which any of these runs."""
    covered = end = 0.0
    for event in sorted(events, key=lambda event: float(event["ts"])):
        start, ends = float(event["ts"]), _end(event)
        covered += max(0.0, ends - max(start, end))
        end = max(end, ends)
    return covered


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event["dur"])
