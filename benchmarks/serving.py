"""A server under load, over real gRPC or HTTP: the time to the first token, between tokens, and to the end of a request.

    python benchmarks/serving.py                                          the embedded model, a small workload
    python benchmarks/serving.py --shape qwen3-0.6b --workloads all --plot docs/serving.svg
    python benchmarks/serving.py --shape qwen3-0.6b --streams 256         256 streams over one Session, then over 256
                                                                          connections, compared with offline throughput
    python benchmarks/serving.py --shape qwen3-0.6b --streams 256 --http  the same, then 256 SSE streams over HTTP

The server is one process, all clients are another. Results are JSON lines, on standard output or in --output; a table
of them goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import grpc
import grpc.aio
import numpy as np
import torch
import uvloop
import yaml
from load.client import Turn, run
from load.sse import measure_sse
from load.streams import measure_streams, offline, streams_workload
from load.workloads import SERVING_WORKLOADS, ServingWorkload
from rich.console import Console
from rich.table import Table

from draftline.engine.bench.contenders.engines import BenchmarkModel
from draftline.engine.bench.contenders.shapes import SHAPES, find_shape
from draftline.engine.bench.provenance import Conditions
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

CPU_DEFAULT = ("baseline",)
"""The default workloads on a CPU. On a GPU the default is all."""


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds of ``values`` in seconds."""
    if not values:
        return {"p50": 0.0, "p95": 0.0, "p99": 0.0}
    p50, p95, p99 = np.percentile(np.array(values) * 1000, [50, 95, 99])
    return {"p50": round(float(p50), 2), "p95": round(float(p95), 2), "p99": round(float(p99), 2)}


def summary(turns: Sequence[Turn], seconds: float, slo_first_s: float, slo_gap_s: float) -> dict[str, Any]:
    """The result of a workload. Goodput counts requests whose first token and mean gap are within the limits."""
    good = [t for t in turns if t.first_s <= slo_first_s and t.gaps_s and float(np.mean(t.gaps_s)) <= slo_gap_s]
    tokens = sum(len(turn.tokens) for turn in turns)
    return {
        "requests": len(turns),
        "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(tokens / seconds, 1),
        "first_token_ms": percentiles([turn.first_s for turn in turns]),
        "inter_token_ms": percentiles([gap for turn in turns for gap in turn.gaps_s]),
        "end_to_end_ms": percentiles([turn.total_s for turn in turns]),
        "goodput_per_s": round(len(good) / seconds, 2),
        "good_share": round(len(good) / len(turns), 3),
        "limits_ms": {"first_token": slo_first_s * 1000, "inter_token": slo_gap_s * 1000},
    }


class Served(NamedTuple):
    """A running server: its process id, and its ``host:port`` for gRPC and HTTP. HTTP's is empty unless it is served."""

    pid: int
    grpc: str
    http: str


@contextmanager
def server(model: BenchmarkModel, options: Mapping[str, object]) -> Iterator[Served]:
    """A server process, once it serves."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        yaml.safe_dump({"model": model.checkpoint, **options}, config)
        config.flush()
        command = (sys.executable, "-m", "draftline", "serve", "--port", "0", "--config", config.name)
        quiet = ("--log-level", "warning", "--no-log-requests")
        process = subprocess.Popen([*command, *quiet], stdout=subprocess.PIPE, text=True)
        yield from _serving(process)


def _serving(process: subprocess.Popen[str]) -> Iterator[Served]:
    try:
        assert process.stdout is not None
        found = Served(process.pid, "", "")
        for line in process.stdout:
            if "listening on " in line:
                scheme, _, address = line.rpartition(" ")[2].strip().rpartition("//")
                found = found._replace(http=address) if scheme else found._replace(grpc=address)
            if "ready: " in line:
                break
        else:
            raise RuntimeError(f"the server ended with status {process.wait()}")
        yield found
    finally:
        process.terminate()
        process.communicate(timeout=60)


def served_model(address: str) -> pb.GetModelResponse:
    """The model that the server serves."""
    with grpc.insecure_channel(address) as channel:
        return InferenceServiceStub(channel).GetModel(pb.GetModelRequest())


def table(results: Sequence[Mapping[str, Any]]) -> Table:
    """The results as a table."""
    shown = Table(title=f"{results[0]['model']} ({results[0]['dtype']}), {results[0]['machine']}", title_justify="left")
    if "way" in results[0]:
        for name in ("workload", "way", "tokens/s", "of offline", "tokens a message", "server CPU µs a token"):
            shown.add_column(name, justify="right")
        for result in results:
            shown.add_row(
                result["workload"],
                result["way"],
                f"{result['tokens_per_s']:,.0f}",
                f"{result['of_offline']:.1%}",
                f"{result['tokens_a_message']:.1f}",
                f"{result['server_cpu_us_a_token']:.1f}",
            )
        return shown
    for name in (
        "workload",
        "requests",
        "tokens/s",
        "first token ms",
        "inter-token ms",
        "end to end ms",
        "goodput/s",
        "good",
    ):
        shown.add_column(name, justify="right")
    for result in results:
        times = [
            " / ".join(
                f"{result[name][p]:,.0f}" if result[name][p] >= 100 else f"{result[name][p]:.1f}"
                for p in ("p50", "p95", "p99")
            )
            for name in ("first_token_ms", "inter_token_ms", "end_to_end_ms")
        ]
        shown.add_row(
            result["workload"],
            str(result["requests"]),
            f"{result['tokens_per_s']:,.0f}",
            *times,
            f"{result['goodput_per_s']:.2f}",
            f"{result['good_share']:.0%}",
        )
    shown.caption = "p50 / p95 / p99"
    return shown


def plot(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot throughput and latency of the ``load`` workloads by the number of clients."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    loads = [(int(r["workload"].removeprefix("load")), r) for r in results if r["workload"].startswith("load")]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    clients = [count for count, _ in loads]
    left.plot(clients, [r["tokens_per_s"] for _, r in loads], marker="o")
    left.set(xlabel="clients", ylabel="tokens/s", xscale="log", ylim=(0, None))
    for name, label in (("first_token_ms", "first token"), ("inter_token_ms", "inter-token")):
        for percentile, style in (("p50", "-"), ("p99", ":")):
            values = [r[name][percentile] for _, r in loads]
            right.plot(clients, values, style, marker=".", label=f"{label}, {percentile}")
    right.set(xlabel="clients", ylabel="milliseconds", xscale="log", yscale="log")
    right.legend(fontsize="small")
    figure.savefig(path)
    plt.close(figure)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", default="smollm2", help="an HF folder, a .gguf file or a hub id (default: smollm2)")
    source.add_argument("--shape", help=f"random weights in the shape of {', '.join(SHAPES)}, or of a config.json")
    names = ", ".join(workload.name for workload in SERVING_WORKLOADS)
    parser.add_argument("--workloads", help=f"comma-separated, of {names}, or all (default: baseline; all on a GPU)")
    parser.add_argument(
        "--streams", type=int, help="instead: compare this many concurrent streams with offline throughput"
    )
    parser.add_argument("--http", action="store_true", help="also send the --streams over HTTP, as SSE streams")
    parser.add_argument(
        "--prompt-len", type=int, default=128, help="prompt tokens of each of the --streams (default: 128)"
    )
    parser.add_argument(
        "--output-len", type=int, default=256, help="output tokens of each of the --streams (default: 256)"
    )
    parser.add_argument("--best-of", type=int, default=2, help="rounds of --streams (default: 2)")
    parser.add_argument("--first-token-limit", type=float, default=1.0, help="seconds, for goodput (default: 1)")
    parser.add_argument("--inter-token-limit", type=float, default=0.05, help="seconds, for goodput (default: 0.05)")
    parser.add_argument("--plot", type=Path, help="plot the load workloads to this SVG file")
    parser.add_argument("--output", type=Path, help="append the JSON lines to this file instead of standard output")
    arguments = parser.parse_args(argv)
    if arguments.http and not arguments.streams:
        parser.error("--http needs --streams")
    return arguments


def chosen(names: str | None, on_gpu: bool) -> list[ServingWorkload]:
    """The workloads of a comma-separated list, or the default.

    Raises:
        ValueError: a workload is unknown.
    """
    known = {workload.name: workload for workload in SERVING_WORKLOADS}
    if names == "all" or (names is None and on_gpu):
        return list(SERVING_WORKLOADS)
    wanted = list(CPU_DEFAULT) if names is None else [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise ValueError(f"workload {name!r} is not one of {', '.join(known)}")
    return [known[name] for name in wanted]


def measure(arguments: argparse.Namespace, folder: Path, out: TextIO) -> list[dict[str, Any]]:
    """Run the measurements; write each result to ``out`` as soon as it is known."""
    model = BenchmarkModel(arguments.model, arguments.model, None)
    if arguments.shape is not None:
        model = BenchmarkModel.of_shape(arguments.shape, find_shape(arguments.shape), folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    conditions = Conditions.now(device)
    results: list[dict[str, Any]] = []

    def write(line: Mapping[str, Any], info: pb.GetModelResponse) -> None:
        results.append({**asdict(conditions), "model": model.name, "dtype": info.dtype, **line})
        out.write(json.dumps(results[-1]) + "\n")
        out.flush()

    options: dict[str, object] = {"load_format": "auto" if model.shape is None else "dummy"}
    if arguments.streams:
        workload = streams_workload(arguments.streams, arguments.prompt_len, arguments.output_len)
        # No prefix caching in either: prompts repeat in every round. The engine has a process of its own, as on a GPU, so
        # that the server's processor time is known.
        own = {"drafter": "none", "max_num_seqs": arguments.streams, "prefix_caching": False}
        served = {**options, **own, "max_model_len": workload.max_model_len, "engine_process": True}
        with server(model, served | ({"http_port": 0} if arguments.http else {})) as process:
            info = served_model(process.grpc)
            same = (workload, info.vocab_size, arguments.best_of, process.pid)
            lines = list(measure_streams(process.grpc, *same))
            if arguments.http:
                lines.append(measure_sse(process.http, *same))
        offline_rate = offline(model, workload, arguments.best_of, own)  # last: it keeps the device's memory
        for line in lines:
            write(
                {**line, "offline_tokens_per_s": offline_rate, "of_offline": line["tokens_per_s"] / offline_rate}, info
            )
        return results
    workloads = chosen(arguments.workloads, device.type == "cuda")
    with server(model, options | {"max_model_len": max(w.max_model_len for w in workloads)}) as process:
        info = served_model(process.grpc)
        for wanted in workloads:
            turns, seconds = uvloop.run(run(process.grpc, wanted, info.vocab_size))
            line = summary(turns, seconds, arguments.first_token_limit, arguments.inter_token_limit)
            write({"workload": wanted.name, **line}, info)
    return results


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    arguments = _arguments(argv)
    with (
        tempfile.TemporaryDirectory() as folder,
        arguments.output.open("a") if arguments.output else nullcontext(sys.stdout) as out,
    ):
        try:
            results = measure(arguments, Path(folder), out)
        except ValueError as error:
            raise SystemExit(str(error)) from None
    Console(stderr=True, width=150).print(table(results))
    if arguments.plot is not None:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
