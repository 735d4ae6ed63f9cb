"""Timing of device code by replays of CUDA graphs, and a table of the results. For sections.py."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from draftline.engine.bench.provenance import conditions

Call = Callable[[], object]

_CACHE_BYTES = 400 * 2**20
"""The size of all copies of an input: several times the largest L2 cache."""

_STREAMS = 6
"""More than four, as in an engine: from the fifth on, their number changes nothing."""

_MAX_FAILURES = 12
"""The most failures in the table; the saved results have all."""


def copies_beyond_cache(num_bytes: int, max_copies: int = 64) -> int:
    """The number of copies of an input of this size that the caches cannot hold; at most ``max_copies``."""
    return max(1, min(max_copies, -(-_CACHE_BYTES // num_bytes)))


@cache
def _more_streams() -> tuple[torch.cuda.Stream, ...]:
    """Streams that have each been used once: with fewer than five in a process, launches overlap in another way.

    See docs/tuning.md#when-the-next-kernel-starts.
    """
    streams = tuple(torch.cuda.Stream() for _ in range(_STREAMS))
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    return streams


def graph_time(calls: Sequence[Call], budget_ms: float = 60.0) -> float:
    """Microseconds a call: the median over replays of one CUDA graph that holds all calls in order."""
    _more_streams()
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
    """The relative error in the Euclidean norm; NaN if either tensor has a NaN."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The measured peak rates of the device.

    Attributes:
        bytes_per_us: of a copy: bytes read plus bytes written.
        flops_per_us: of a large bf16 matrix product.
    """

    bytes_per_us: float
    flops_per_us: float

    @staticmethod
    def measure() -> Ceilings:
        """Measure a copy of 2 GiB, and a product of 8192 x 8192 matrices of random numbers."""
        source = torch.empty(2**31, dtype=torch.int8, device="cuda").random_()
        target = torch.empty_like(source)
        copy = graph_time([lambda: target.copy_(source)])
        left, right = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
        product = graph_time([lambda: left @ right])
        return Ceilings(2 * source.numel() / copy, 2 * 8192**3 / product)


@dataclass(slots=True)
class CaseResult:
    """One timed case.

    Attributes:
        section: the kind of operation.
        case: the model and the sizes.
        variant: the implementation or configuration.
        microseconds: the time of a call.
        percent: the achieved share of the applicable ceiling.
        rate: the achieved rate, with its unit.
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
        ceilings: the peak rates of the device.
        deadline: cases that would start after this (``time.monotonic``) are left out, and counted.
    """

    ceilings: Ceilings
    deadline: float
    results: list[CaseResult] = field(default_factory=list)
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
        """Check, then time ``calls``, each of ``num_bytes`` or ``flops``; return microseconds, or None if left out.

        A variant that the device rejects, or whose error exceeds ``bound``, is reported as failed.
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
        self.results.append(CaseResult(section, case, variant, microseconds, 100 * limit / microseconds, rate))
        print(f"{name:<70} {microseconds:9.2f} us {100 * limit / microseconds:5.1f}% {rate}", flush=True)

    def report(self, best: int = 3) -> str:
        """A table of the default and the best variants of every case, with failures and cases left out."""
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
        """Save all results as JSON."""
        content = {
            "conditions": conditions("cuda"),
            "ceilings": asdict(self.ceilings),
            "results": [asdict(result) for result in self.results],
            "failed": self.failed,
            "left_out": self.left_out,
        }
        path.write_text(json.dumps(content, indent=1))
