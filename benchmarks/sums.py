"""Time the sums between ranks, and check their results before and after: ``python benchmarks/sums.py --ranks 2``.

Each rank is a process, with a GPU where there are enough of them, else on the CPU over gloo. On GPUs the times are those of replayed
CUDA graphs of 50 sums, each with its residual addition; ``normed`` has the RMSNorm behind it. One JSON line a shape, and with
--vocabulary one for the logits' join and the samples' spread of each number of rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path

import torch
from torch import Tensor

from draftline.engine.bench.provenance import conditions
from draftline.engine.parallel.group import RankGroup, meet
from draftline.kernels import select_ops

_SUMS = 50
_REPLAYS = 10
_EPS = 1e-5

_MOST_LOGITS = 64
"""The most rows whose logits are joined."""


def _shape(text: str) -> tuple[int, int]:
    rows, columns = text.split("x")
    return int(rows), int(columns)


def _seconds(work: Callable[[], object], group: RankGroup, device: torch.device) -> float:
    """Seconds of one call, on the rank's device. All ranks call it together."""
    work()
    group.least([0])
    if device.type == "cpu":
        started = time.perf_counter()
        for _ in range(_SUMS):
            work()
        return (time.perf_counter() - started) / _SUMS
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_SUMS):
            work()
    graph.replay()
    torch.cuda.synchronize(device)
    group.least([0])
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize(device)
    millis: float = start.elapsed_time(end)
    return millis / 1000 / _SUMS / _REPLAYS


@torch.inference_mode()
def run_rank(
    rank: int, ranks: int, file: str, device_type: str, shapes: list[tuple[int, int]], vocabulary: int | None
) -> None:
    """One rank's measurements; rank 0 prints them.

    Raises:
        RuntimeError: a result is wrong.
    """
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    group, ops = RankGroup(meet(Path(file), rank, ranks), device), select_ops(device)
    generator = torch.Generator().manual_seed(0)
    for shape in shapes:
        partials = torch.randn(ranks, *shape, generator=generator).to(dtype)
        residual, norm = torch.randn(shape, generator=generator).to(dtype).to(device), torch.ones(shape[1], dtype=dtype)
        own, norm = partials[rank].to(device), norm.to(device)

        def summed(own: Tensor = own, residual: Tensor = residual) -> Tensor:
            return group.collectives.sum_add(own, None, residual)

        def normed(norm: Tensor = norm, summed: Callable[[], Tensor] = summed) -> Tensor:
            return ops.rms_norm(summed(), norm, _EPS)

        expected = partials[0].float()
        for partial in partials[1:]:
            expected = expected + partial.float()
        right = (residual.cpu().float() + expected).to(dtype)

        def check(summed: Callable[[], Tensor] = summed, right: Tensor = right) -> None:
            if not summed().cpu().equal(right):
                raise RuntimeError(f"rank {rank}: a sum of {list(right.shape)} is wrong")

        check()
        times = {name: _seconds(work, group, device) for name, work in (("sum_us", summed), ("normed_us", normed))}
        check()
        if rank == 0:
            _say(device, {"ranks": ranks, "rows": shape[0], "columns": shape[1], "dtype": _name(dtype)}, times)
    if vocabulary is None:
        return
    widths = [(vocabulary + ranks - 1 - other) // ranks for other in range(ranks)]
    join = group.collectives.joiner(widths)
    for rows in sorted({rows for rows, _ in shapes if rows <= _MOST_LOGITS}):
        part = torch.full((rows, widths[rank]), rank, dtype=dtype, device=device)
        tokens = torch.arange(rows, device=device) + rank
        joined, spread = join(part), group.collectives.spread(tokens.clone())
        if not joined.equal(
            torch.cat([torch.full_like(joined[:, :width], other) for other, width in enumerate(widths)], 1)
        ):
            raise RuntimeError(f"rank {rank}: the join of {rows} rows is wrong")
        if spread.tolist() != list(range(rows)):
            raise RuntimeError(f"rank {rank}: the spread of {rows} samples is wrong")
        works = {
            "join_us": lambda part=part: join(part),
            "spread_us": lambda tokens=tokens: group.collectives.spread(tokens),
        }
        times = {name: _seconds(work, group, device) for name, work in works.items()}
        if rank == 0:
            _say(device, {"ranks": ranks, "rows": rows, "vocabulary": vocabulary, "dtype": _name(dtype)}, times)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _say(device: torch.device, what: Mapping[str, object], times: Mapping[str, float]) -> None:
    micros = {name: round(seconds * 1e6, 2) for name, seconds in times.items()}
    print(json.dumps({**conditions(device), **what, **micros}), flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--shapes",
        type=_shape,
        nargs="+",
        default=[(1, 4096), (8, 4096), (16, 4096), (17, 4096), (64, 4096), (256, 4096), (1, 8192), (2048, 4096)],
    )
    parser.add_argument("--vocabulary", type=int, help="also time the join of the logits of so many tokens")
    options = parser.parse_args()
    device_type = "cuda" if torch.cuda.device_count() >= options.ranks else "cpu"
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=run_rank,
                args=(rank, options.ranks, f"{folder}/ranks", device_type, options.shapes, options.vocabulary),
                daemon=True,
            )
            for rank in range(options.ranks)
        ]
        for process in processes:
            process.start()
        running = {process.sentinel: process for process in processes}
        while running:
            for sentinel in wait(list(running)):
                ended = running.pop(sentinel)  # type: ignore[arg-type]
                ended.join()
                if ended.exitcode:
                    for process in processes:
                        process.kill()  # the others may wait for this one for ever
                    raise SystemExit(1)


if __name__ == "__main__":
    main()
