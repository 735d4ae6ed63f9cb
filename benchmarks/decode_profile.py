"""A profile of decode steps: how busy the device is, with which kernels, and how long the host works.

    python benchmarks/decode_profile.py --shape qwen3-0.6b --rows 64 --trace trace.json.gz
    python benchmarks/decode_profile.py --shape llama-3.1-8b --rows 1 --set tensor_parallel_size=2

All rows decode while a window of steps is measured twice. The first time, the host's clock measures how long the host
waits for the device; if it does not wait, the host limits the step. The second time, torch.profiler records the
kernels. The device is busy during the graphs of steps (``busy_by_steps``), and during their kernels
(``busy_by_kernels``): between two dependent kernels of a graph there is a gap of about a microsecond. A kernel that
starts early waits for the one before it. So the table has each kernel's own time, from the end of all earlier ones on:
these add up to the time that the device is busy. Of several ranks, rank 0 is profiled.
"""

from __future__ import annotations

import argparse
import cProfile
import gzip
import json
import pstats
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common.settings import add_settings, engine_options
from rich.console import Console
from rich.table import Table

from draftline.engine.bench.batches import OfflineWorkload
from draftline.engine.bench.contenders.engines import BenchmarkModel
from draftline.engine.bench.contenders.shapes import SHAPES, find_shape
from draftline.engine.bench.provenance import conditions
from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.request import RequestBuilder
from draftline.engine.runner.transfer import Arrival


@dataclass(frozen=True, slots=True)
class Kernel:
    """One run of a kernel on the device, in microseconds."""

    name: str
    start: float
    end: float


@dataclass(slots=True)
class Waits:
    """The time that the host waited for results, in seconds."""

    total: float = 0.0


def covered(kernels: Sequence[Kernel], bridge_us: float) -> float:
    """The share of the time, from first start to last end, in which a kernel runs. Gaps up to ``bridge_us`` count."""
    ordered = sorted(kernels, key=lambda kernel: kernel.start)
    first = end = ordered[0].start
    idle = 0.0
    for kernel in ordered:
        gap = kernel.start - end
        if gap > bridge_us:
            idle += gap
        end = max(end, kernel.end)
    return 1 - idle / (end - first)


def own_times(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, float]]:
    """Each kernel with the microseconds in which it runs and none that ends before it does."""
    end = 0.0
    for kernel in sorted(kernels, key=lambda kernel: kernel.end):
        yield kernel, kernel.end - max(kernel.start, end)
        end = kernel.end


def read_kernels(trace: Path) -> list[Kernel]:
    """The kernels and copies in a trace of torch.profiler, which compresses it where its name ends with .gz."""
    data = trace.read_bytes()
    events = json.loads(gzip.decompress(data) if trace.suffix == ".gz" else data)["traceEvents"]
    wanted = {"kernel", "gpu_memcpy", "gpu_memset"}
    return [Kernel(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in wanted]


@contextmanager
def waits_counted() -> Iterator[Waits]:
    """Measure how long the host waits for results within the block."""
    waits, wait = Waits(), Arrival.wait

    def timed(self: Arrival) -> None:
        start = time.perf_counter()
        wait(self)
        waits.total += time.perf_counter() - start

    with mock.patch.object(Arrival, "wait", timed):
        yield waits


def run_steps(core: Core, steps: int) -> float:
    """Run ``steps`` steps; return the seconds that they took."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        core.step()
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shape", default="qwen3-0.6b", help=f"random weights in the shape of {', '.join(SHAPES)}, or of a config.json"
    )
    parser.add_argument("--rows", type=int, default=64, help="decoding sequences (default: 64)")
    parser.add_argument("--prompt-len", type=int, default=512, help="tokens of each prompt (default: 512)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    parser.add_argument("--steps", type=int, default=100, help="steps in the window (default: 100)")
    add_settings(parser, "an option of EngineConfig, such as --set quantization=fp8")
    parser.add_argument("--host-profile", action="store_true", help="also print a profile of the host")
    parser.add_argument("--trace", type=Path, help="save the profiler's trace to this file")
    arguments = parser.parse_args(argv)
    rows, steps = arguments.rows, arguments.steps
    # The first sequences decode while the last ones' prompts run.
    output_len = rows + 4 * steps + 64
    workload = OfflineWorkload("profile", rows, (arguments.prompt_len,) * 2, (output_len,) * 2, arguments.temperature)
    console = Console(width=140)
    with tempfile.TemporaryDirectory() as folder:
        model = BenchmarkModel.of_shape(arguments.shape, find_shape(arguments.shape), Path(folder))
        decoding: set[str] = set()

        def hear(updates: Iterable[tuple[str, object]]) -> None:
            decoding.update(request for request, _ in updates)

        core = _start(model, workload, engine_options(arguments.set, own={"model": "use --shape"}), hear)
        while len(decoding) < rows:
            core.step()
        run_steps(core, 8)
        with waits_counted() as waits:
            seconds = run_steps(core, steps)
        path = arguments.trace or Path(folder) / "trace.json"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            run_steps(core, steps)
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(path))
        kernels = read_kernels(path)
        print(json.dumps(_summary(core, arguments, seconds, waits, kernels)))
        if arguments.host_profile:
            with cProfile.Profile() as profile:
                run_steps(core, steps)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        console.print(_table(kernels, steps))
        torch.cuda.synchronize()  # the other ranks end with the step that is in flight, if there is one
        core.close()


def _start(
    model: BenchmarkModel,
    workload: OfflineWorkload,
    options: Mapping[str, object],
    hear: Callable[[Iterable[tuple[str, object]]], None],
) -> Core:
    """A core with the workload in its queue; ``hear`` gets new tokens with the names of their requests."""
    own: dict[str, Any] = {
        "model": model.checkpoint,
        "load_format": "dummy",
        "device": "cuda",
        "max_model_len": workload.max_model_len,
        "max_num_seqs": workload.requests,
        "prefix_caching": False,
    }
    config = EngineConfig.model_validate({**own, **options})
    core = build_core(config)
    builder = RequestBuilder(core.info, core.tokenizer, config.ageing_s, core.compiler)
    for index, request in enumerate(workload.draw(core.info.config.vocab_size)):
        sampling = SamplingParams(
            temperature=workload.temperature, max_tokens=request.output_len, ignore_eos=True, seed=0
        )
        wanted = GenerateRequest(request.prompt, sampling)
        core.add(builder.build(str(index), wanted, hear, core.now()))
    return core


def _summary(
    core: Core, arguments: argparse.Namespace, seconds: float, waits: Waits, kernels: Sequence[Kernel]
) -> dict[str, object]:
    steps = arguments.steps
    return {
        **conditions(core.info.device),
        "model": arguments.shape,
        "rows": arguments.rows,
        "prompt_len": arguments.prompt_len,
        "temperature": arguments.temperature,
        "options": arguments.set,
        "step_ms": 1e3 * seconds / steps,
        "host_ms": 1e3 * (seconds - waits.total) / steps,
        "busy_by_steps": covered(kernels, bridge_us=5.0),
        "busy_by_kernels": covered(kernels, bridge_us=0.0),
        "kernels_per_step": len(kernels) / steps,
    }


def _table(kernels: Sequence[Kernel], steps: int) -> Table:
    by_name: dict[str, list[float]] = defaultdict(list)
    for kernel, microseconds in own_times(kernels):
        by_name[kernel.name].append(microseconds)
    table = Table("kernel", "calls/step", "µs/call", "µs/step")
    for name, times in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:25]:
        each = sum(times) / len(times)
        table.add_row(name[:90], f"{len(times) / steps:.1f}", f"{each:.2f}", f"{sum(times) / steps:.1f}")
    return table


if __name__ == "__main__":
    main()
