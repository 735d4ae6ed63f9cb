"""Offline throughput: batches of requests that arrive at once, in rounds, on one engine or on several in turn.

Every round runs each workload twice: once with one token a request, which gives the prefill time, and once in full.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.table import Table

from draftline.engine.bench.batches import BenchmarkRequest, OfflineWorkload
from draftline.engine.bench.contenders.engines import Contender
from draftline.engine.bench.rounds import results_of_rounds

STATISTICS: dict[str, Callable[[list[float]], float]] = {"best": min, "median": statistics.median}
"""The statistics that combine the times of several rounds."""

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Round:
    """The wall times of one round in seconds: with one token a request, and of the whole workload."""

    prefill_s: float
    total_s: float


def measure(contender: Contender, workload: OfflineWorkload, clock: Callable[[], float] = time.perf_counter) -> Round:
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


def warm_up(contender: Contender, workload: OfflineWorkload) -> None:
    """Run a few tokens of the workload, so that no round compiles kernels, captures graphs or allocates memory."""
    requests = [
        replace(request, output_len=min(request.output_len, _WARM_UP_TOKENS))
        for request in workload.draw(contender.vocab_size)
    ]
    contender.run(requests, workload.temperature)


def summarize(
    contender: Contender,
    model: str,
    workload: OfflineWorkload,
    rounds: Sequence[Round],
    statistic: str,
) -> dict[str, Any]:
    """The fields of a line: one engine on one workload, with rounds combined by one of STATISTICS.

    ``seconds`` is the wall time of the whole workload, ``prefill_s`` that of the same requests with one token each.
    ``tokens_per_s`` are generated tokens divided by ``seconds``, ``prompt_tokens_per_s`` prompt tokens divided by
    ``prefill_s``. ``decode_tokens_per_s`` are the tokens after the first of each request, divided by the time after
    prefill, or None. ``rounds`` has each round's (prefill_s, total_s).
    """
    pick = STATISTICS[statistic]
    seconds = pick([round_.total_s for round_ in rounds])
    prefill_s = pick([round_.prefill_s for round_ in rounds])
    requests = workload.draw(contender.vocab_size)
    tokens = sum(request.output_len for request in requests)
    prompt_tokens = sum(len(request.prompt) for request in requests)
    later_tokens = tokens - len(requests)
    return {
        "engine": contender.name,
        "options": dict(contender.options),
        "model": model,
        "weights": contender.weights,
        "dtype": contender.dtype,
        "workload": workload.name,
        "description": str(workload),
        "statistic": statistic,
        "requests": len(requests),
        "prompt_tokens": prompt_tokens,
        "tokens": tokens,
        "seconds": seconds,
        "prefill_s": prefill_s,
        "tokens_per_s": tokens / seconds,
        "decode_tokens_per_s": later_tokens / (seconds - prefill_s) if later_tokens and seconds > prefill_s else None,
        "prompt_tokens_per_s": prompt_tokens / prefill_s,
        "rounds": [(round_.prefill_s, round_.total_s) for round_ in rounds],
    }


def compare(
    contenders: Sequence[Contender], model: str, workload: OfflineWorkload, rounds: int
) -> Iterator[dict[str, Any]]:
    """Run a workload on every contender, in alternating rounds so that disturbances affect all alike.

    For a single contender the best times count: disturbances only make a round slower. For several, the medians count.

    Yields:
        The fields of each contender's line; see `summarize` and `results_of_rounds`.
    """
    for contender in contenders:
        warm_up(contender, workload)
    statistic = "best" if len(contenders) == 1 else "median"

    def results(taken: Sequence[Sequence[Round]]) -> Iterator[dict[str, Any]]:
        for contender, times in zip(contenders, zip(*taken, strict=True), strict=True):
            yield summarize(contender, model, workload, times, statistic)

    taken_in_turns = ([measure(contender, workload) for contender in contenders] for _ in range(rounds))
    yield from results_of_rounds(taken_in_turns, results)


def table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """The results as a table, with the speed-up of the first engine over each of the others."""
    several = len({(line["engine"], line["dtype"]) for line in lines}) > 1
    shown = Table(title=f"{lines[0]['model']} on {lines[0]['machine']}", title_justify="left")
    for name in ("workload", "in/out", "engine", "weights", "dtype"):
        shown.add_column(name)
    for name in ("tokens/s", "decode tokens/s", "prompt tokens/s", "prefill s", *(["speed-up"] if several else [])):
        shown.add_column(name, justify="right")
    firsts: dict[str, Mapping[str, Any]] = {}
    for line in lines:
        first = firsts.setdefault(line["workload"], line)
        decode = line["decode_tokens_per_s"]
        ratio = f"{first['tokens_per_s'] / line['tokens_per_s']:.2f}×" if line is not first else ""
        shown.add_row(
            line["workload"] if line is first else "",
            line["description"] if line is first else "",
            line["engine"],
            line["weights"],
            line["dtype"],
            f"{line['tokens_per_s']:,.1f}",
            "–" if decode is None else f"{decode:,.1f}",
            f"{line['prompt_tokens_per_s']:,.0f}",
            f"{line['prefill_s']:.3f}",
            *([ratio] if several else []),
        )
    if several:
        shown.caption = f"speed-up: tokens/s of {lines[0]['engine']} ({lines[0]['dtype']}) divided by those of the row"
    return shown
