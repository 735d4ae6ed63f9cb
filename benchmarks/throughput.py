"""Offline throughput in tokens/s, for a batch of requests that arrive at once, prompt processing included.

    python benchmarks/throughput.py                                    the embedded model, on this machine's device
    python benchmarks/throughput.py --shape qwen3-0.6b --workloads nano,bs1,bs64
    python benchmarks/throughput.py --compare transformers             compared with generate(), in alternating rounds
    python benchmarks/throughput.py --dtype auto,bfloat16 --compare llama.cpp                  two dtypes and llama.cpp

Every round runs each workload twice: once with one token a request, which gives the prefill time, and once in full.
Results are JSON lines, on standard output or in --output; a table of them goes to standard error. *Not* measured:
latency under load, the server, and speculative decoding, whose gain depends on the text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

import torch
import yaml
from rich.console import Console
from rich.table import Table

from draftline.engine.bench.batches import (
    CPU_WORKLOADS,
    GPU_WORKLOADS,
    WORKLOADS,
    BenchmarkRequest,
    Workload,
    find_workloads,
)
from draftline.engine.bench.contenders.engines import BenchmarkModel, Contender, Draftline, Transformers
from draftline.engine.bench.contenders.llama_cpp import LlamaCpp
from draftline.engine.bench.contenders.shapes import SHAPES, find_shape
from draftline.engine.bench.provenance import Conditions

STATISTICS: dict[str, Callable[[list[float]], float]] = {"best": min, "median": statistics.median}
"""The statistics that combine the times of several rounds."""

_WARM_UP_TOKENS = 8

_OTHERS = ("transformers", "llama.cpp")


@dataclass(frozen=True, slots=True)
class Round:
    """The wall times of one round in seconds: with one token a request, and of the whole workload."""

    prefill_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """One engine on one workload: the fields of a line of output.

    Attributes:
        conditions: the conditions of the measurement; its fields come first in the line.
        engine: the name of the engine.
        options: its options from --set.
        model: the checkpoint or shape.
        weights: the format of the weights.
        dtype: the dtype of activations.
        workload: the name of the workload.
        description: requests × prompt length/output length.
        statistic: a key of STATISTICS, which combines the rounds.
        requests: the number of requests.
        prompt_tokens: prompt tokens in all.
        tokens: generated tokens in all.
        seconds: wall time of the whole workload.
        prefill_s: wall time of the same requests with one token each.
        tokens_per_s: generated tokens divided by ``seconds``.
        decode_tokens_per_s: tokens after the first of each request, divided by the time after prefill; or None.
        prompt_tokens_per_s: prompt tokens divided by ``prefill_s``.
        rounds: each round's (prefill_s, total_s).
    """

    conditions: Conditions
    engine: str
    options: Mapping[str, object]
    model: str
    weights: str
    dtype: str
    workload: str
    description: str
    statistic: str
    requests: int
    prompt_tokens: int
    tokens: int
    seconds: float
    prefill_s: float
    tokens_per_s: float
    decode_tokens_per_s: float | None
    prompt_tokens_per_s: float
    rounds: Sequence[tuple[float, float]]

    def line(self) -> str:
        """The result as one line of JSON."""
        fields = asdict(self)
        return json.dumps({**fields.pop("conditions"), **fields}, ensure_ascii=False)


def measure(contender: Contender, workload: Workload, clock: Callable[[], float] = time.perf_counter) -> Round:
    """Run one round."""
    requests = workload.draw(contender.vocab_size)
    first_tokens = [replace(request, output_len=1) for request in requests]

    def timed(wanted: Sequence[BenchmarkRequest]) -> float:
        _finish_device_work(contender.device)
        start = clock()
        contender.run(wanted, workload.temperature)
        _finish_device_work(contender.device)
        return clock() - start

    prefill_s = timed(first_tokens)
    return Round(prefill_s, prefill_s if requests == first_tokens else timed(requests))


def _finish_device_work(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def warm_up(contender: Contender, workload: Workload) -> None:
    """Run a few tokens of the workload, so that no round compiles kernels, captures graphs or allocates memory."""
    requests = [
        replace(request, output_len=min(request.output_len, _WARM_UP_TOKENS))
        for request in workload.draw(contender.vocab_size)
    ]
    contender.run(requests, workload.temperature)


def summarize(
    contender: Contender,
    model: str,
    workload: Workload,
    rounds: Sequence[Round],
    statistic: str,
    conditions: Conditions,
) -> ThroughputResult:
    """The result of all rounds, combined by one of STATISTICS."""
    pick = STATISTICS[statistic]
    seconds = pick([round_.total_s for round_ in rounds])
    prefill_s = pick([round_.prefill_s for round_ in rounds])
    requests = workload.draw(contender.vocab_size)
    tokens = sum(request.output_len for request in requests)
    prompt_tokens = sum(len(request.prompt) for request in requests)
    later_tokens = tokens - len(requests)
    return ThroughputResult(
        conditions=conditions,
        engine=contender.name,
        options=dict(contender.options),
        model=model,
        weights=contender.weights,
        dtype=contender.dtype,
        workload=workload.name,
        description=str(workload),
        statistic=statistic,
        requests=len(requests),
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        seconds=seconds,
        prefill_s=prefill_s,
        tokens_per_s=tokens / seconds,
        decode_tokens_per_s=later_tokens / (seconds - prefill_s) if later_tokens and seconds > prefill_s else None,
        prompt_tokens_per_s=prompt_tokens / prefill_s,
        rounds=[(round_.prefill_s, round_.total_s) for round_ in rounds],
    )


def compare(
    contenders: Sequence[Contender], model: str, workload: Workload, rounds: int, conditions: Conditions
) -> list[ThroughputResult]:
    """Run a workload on every contender, in alternating rounds so that disturbances affect all alike.

    For a single contender the best times count: disturbances only make a round slower. For several, the medians count.
    """
    for contender in contenders:
        warm_up(contender, workload)
    taken: list[list[Round]] = [[] for _ in contenders]
    for _ in range(rounds):
        for contender, times in zip(contenders, taken, strict=True):
            times.append(measure(contender, workload))
    statistic = "best" if len(contenders) == 1 else "median"
    return [
        summarize(contender, model, workload, times, statistic, conditions)
        for contender, times in zip(contenders, taken, strict=True)
    ]


def table(results: Sequence[ThroughputResult]) -> Table:
    """The results as a table, with the speed-up of the first engine over each of the others."""
    several = len({(result.engine, result.dtype) for result in results}) > 1
    shown = Table(title=f"{results[0].model} on {results[0].conditions.machine}", title_justify="left")
    for name in ("workload", "in/out", "engine", "weights", "dtype"):
        shown.add_column(name)
    for name in ("tokens/s", "decode tokens/s", "prompt tokens/s", "prefill s", *(["speed-up"] if several else [])):
        shown.add_column(name, justify="right")
    firsts: dict[str, ThroughputResult] = {}
    for result in results:
        first = firsts.setdefault(result.workload, result)
        decode = "–" if result.decode_tokens_per_s is None else f"{result.decode_tokens_per_s:,.1f}"
        ratio = [f"{first.tokens_per_s / result.tokens_per_s:.2f}×" if result is not first else ""] if several else []
        shown.add_row(
            result.workload if result is first else "",
            result.description if result is first else "",
            result.engine,
            result.weights,
            result.dtype,
            f"{result.tokens_per_s:,.1f}",
            decode,
            f"{result.prompt_tokens_per_s:,.0f}",
            f"{result.prefill_s:.3f}",
            *ratio,
        )
    if several:
        shown.caption = f"speed-up: tokens/s of {results[0].engine} ({results[0].dtype}) divided by those of the row"
    return shown


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", default="smollm2", help="an HF folder, a .gguf file or a hub id (default: smollm2)")
    source.add_argument("--shape", help=f"random weights in the shape of {', '.join(SHAPES)}, or of a config.json")
    parser.add_argument(
        "--workloads",
        help=f"comma-separated, of {', '.join(WORKLOADS)} (default: those for the device)",
    )
    parser.add_argument("--best-of", type=int, default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument("--dtype", default="auto", help="dtypes of Draftline, comma-separated (default: auto)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, … (default: a GPU if there is one)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of EngineConfig, such as --set max_batched_tokens=16384; repeatable",
    )
    parser.add_argument(
        "--compare",
        default="",
        metavar="ENGINES",
        help=f"other engines to run, comma-separated, of {', '.join(_OTHERS)}; times are medians then",
    )
    parser.add_argument(
        "--compare-dtype", default="bfloat16", help="dtypes of transformers, comma-separated (default: bfloat16)"
    )
    parser.add_argument("--output", type=Path, help="append the JSON lines to this file instead of standard output")
    arguments = parser.parse_args(argv)
    if arguments.best_of < 1:
        parser.error(f"--best-of {arguments.best_of}: at least one round is needed")
    if not _names(arguments.dtype):
        parser.error(f"--dtype {arguments.dtype!r}: names no dtype")
    for name in _names(arguments.compare):
        if name not in _OTHERS:
            parser.error(f"--compare {name}: not one of {', '.join(_OTHERS)}")
    return arguments


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _options(settings: Sequence[str]) -> dict[str, object]:
    options: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: expected OPTION=VALUE")
        options[name] = yaml.safe_load(value)
    return options


def run(arguments: argparse.Namespace, folder: Path, out: TextIO) -> list[ThroughputResult]:
    """Run the measurements; write each result to ``out`` as soon as it is known.

    Raises:
        ValueError: an argument is invalid, or there is no such model. The message says which.
    """
    on_gpu = arguments.device.startswith("cuda") or (arguments.device == "auto" and torch.cuda.is_available())
    defaults = ",".join(workload.name for workload in (GPU_WORKLOADS if on_gpu else CPU_WORKLOADS))
    workloads = find_workloads(defaults if arguments.workloads is None else arguments.workloads)
    if arguments.shape is None:
        model = BenchmarkModel(arguments.model, arguments.model, None)
    else:
        model = BenchmarkModel.of_shape(arguments.shape, find_shape(arguments.shape), folder)
    max_model_len = max(workload.max_model_len for workload in workloads)
    options = _options(arguments.set)
    ours = [Draftline(model, dtype, arguments.device, max_model_len, options) for dtype in _names(arguments.dtype)]
    device = ours[0].device
    conditions = Conditions.now(device)
    compared = _names(arguments.compare)
    contenders: list[Contender] = [*ours]
    if "transformers" in compared:
        contenders += [Transformers(model, dtype, device) for dtype in _names(arguments.compare_dtype)]
    if "llama.cpp" in compared:
        contenders.append(LlamaCpp(model, device, max_model_len))
    results: list[ThroughputResult] = []
    for workload in workloads:
        for result in compare(contenders, model.name, workload, arguments.best_of, conditions):
            out.write(result.line() + "\n")
            out.flush()
            results.append(result)
    return results


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    arguments = _arguments(argv)
    with (
        tempfile.TemporaryDirectory() as folder,
        arguments.output.open("a") if arguments.output else nullcontext(sys.stdout) as out,
    ):
        try:
            results = run(arguments, Path(folder), out)
        except ValueError as error:
            raise SystemExit(str(error)) from None
    console = Console(stderr=True)
    # A log file has no width: do not cut the table to 80 columns there.
    Console(stderr=True, width=None if console.is_terminal else 160).print(table(results))


if __name__ == "__main__":
    main()
