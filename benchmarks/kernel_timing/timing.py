"""Timing device code by replaying CUDA graphs, and a table of what came out. For `sections.py`."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from common.provenance import Conditions
from torch import Tensor

Call = Callable[[], object]

_CACHE_BYTES = 400 * 2**20
"""Inputs are rotated until they exceed this: several times the largest L2 cache."""


_MAX_FAILURES = 12
"""Failures that the table lists; the saved results have all."""


def copies_beyond_cache(num_bytes: int, max_copies: int = 64) -> int:
    """How many copies of an input of this size the caches cannot hold."""
    return max(1, min(max_copies, -(-_CACHE_BYTES // num_bytes)))


def graph_time(calls: Sequence[Call], budget_ms: float = 60.0) -> float:
    """Microseconds a call, median of replays of one CUDA graph that holds all of them in order."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()  # compiles, and creates handles
        calls[-1]()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    graph.replay()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times: list[float] = []
    while len(times) < 5 or (sum(times) < budget_ms and len(times) < 200):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    del kept
    graph.reset()
    return statistics.median(times) * 1000 / len(calls)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The relative error in the Euclidean norm; NaN if either has one."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device reaches at best, measured.

    Attributes:
        bytes_per_us: copying, bytes read plus bytes written.
        flops_per_us: a large bf16 matrix product.
    """

    bytes_per_us: float
    flops_per_us: float

    @staticmethod
    def measure() -> Ceilings:
        """Copy 4 GiB, and multiply 8192 x 8192 matrices of random numbers."""
        source = torch.empty(2**31, dtype=torch.int8, device="cuda").random_()
        target = torch.empty_like(source)
        copy = graph_time([lambda: target.copy_(source)])
        left, right = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
        product = graph_time([lambda: left @ right])
        return Ceilings(2 * source.numel() / copy, 2 * 8192**3 / product)


@dataclass(slots=True)
class Result:
    """One timed case.

    Attributes:
        section: what kind of operation.
        case: model and sizes.
        variant: which implementation or configuration.
        microseconds: time a call.
        percent: of the ceiling that applies.
        rate: achieved rate, with its unit.
    """

    section: str
    case: str
    variant: str
    microseconds: float
    percent: float
    rate: str


@dataclass(slots=True)
class Bench:
    """Collects results and keeps to a time budget.

    Attributes:
        ceilings: the device's.
        deadline: cases that would begin after this (``time.monotonic``) are left out, and counted.
    """

    ceilings: Ceilings
    deadline: float
    results: list[Result] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def case(
        self,
        section: str,
        case: str,
        variant: str,
        calls: Sequence[Call],
        *,
        num_bytes: float = 0.0,
        flops: float = 0.0,
        check: Callable[[], float] | None = None,
        bound: float = 1e-2,
    ) -> float | None:
        """Check, then time ``calls`` (each moving ``num_bytes`` or doing ``flops``); microseconds, or None if left out.

        A variant that the device refuses, or that is wrong by more than ``bound``, is reported as failed.
        """
        name = f"{section} {case} {variant}"
        if time.monotonic() > self.deadline:
            self.left_out.append(name)
            return None
        try:
            if check is not None:
                error = check()
                if not error < bound:
                    self.failed.append(f"{name}: relative error {error:.2e}")
                    return None
            microseconds = graph_time(calls)
        except Exception as failure:  # noqa: BLE001 - a configuration that does not run is a result too
            self.failed.append(f"{name}: {type(failure).__name__}: {str(failure)[:160]}")
            torch.cuda.synchronize()
            return None
        self.case_known(section, case, variant, microseconds, num_bytes=num_bytes, flops=flops)
        return microseconds

    def case_known(
        self, section: str, case: str, variant: str, microseconds: float, *, num_bytes: float = 0.0, flops: float = 0.0
    ) -> None:
        """Record a time that was measured or summed elsewhere."""
        name = f"{section} {case} {variant}"
        limit = max(num_bytes / self.ceilings.bytes_per_us, flops / self.ceilings.flops_per_us)
        rate = f"{flops / microseconds / 1e6:7.1f} TFLOP/s" if flops else f"{num_bytes / microseconds / 1e3:7.0f} GB/s"
        self.results.append(Result(section, case, variant, microseconds, 100 * limit / microseconds, rate))
        print(f"{name:<70} {microseconds:9.2f} us {100 * limit / microseconds:5.1f}% {rate}", flush=True)

    def report(self, best: int = 3) -> str:
        """The default and the best few variants of every case, and what failed or was left out."""
        lines = [
            f"copy {self.ceilings.bytes_per_us / 1e3:.0f} GB/s, bf16 product {self.ceilings.flops_per_us / 1e6:.0f} TFLOP/s",
            f"{'section':<10} {'case':<34} {'variant':<26} {'us':>9} {'limit':>6}  rate",
        ]
        cases = dict.fromkeys((result.section, result.case) for result in self.results)
        for section, case in cases:
            rows = [result for result in self.results if (result.section, result.case) == (section, case)]
            ranked = sorted((row for row in rows if "=" in row.variant), key=lambda row: row.microseconds)[:best]
            for row in [row for row in rows if "=" not in row.variant] + ranked:
                lines.append(
                    f"{section:<10} {case:<34} {row.variant:<26} {row.microseconds:9.2f} {row.percent:5.1f}%  {row.rate}"
                )
        lines += [f"FAILED {name}" for name in self.failed[:_MAX_FAILURES]]
        if len(self.failed) > _MAX_FAILURES:
            lines.append(f"and {len(self.failed) - _MAX_FAILURES} more failed")
        if self.left_out:
            lines.append(f"left out for time: {len(self.left_out)}, first {self.left_out[0]}")
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        """All results as JSON."""
        content = {
            "conditions": asdict(Conditions.now(torch.device("cuda"))),
            "ceilings": asdict(self.ceilings),
            "results": [asdict(result) for result in self.results],
            "failed": self.failed,
            "left_out": self.left_out,
        }
        path.write_text(json.dumps(content, indent=1))
