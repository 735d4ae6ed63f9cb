"""A server under load, over real gRPC or HTTP: the time to the first token, between tokens, and to the end of a request.

    python benchmarks/serving.py                                          the embedded model, one workload
    python benchmarks/serving.py --shape qwen3-0.6b --workloads all --plot docs/load.svg
    python benchmarks/serving.py --shape qwen3-0.6b --streams 256         256 streams over one Session, then over 256
                                                                          connections, compared with offline throughput
    python benchmarks/serving.py --shape qwen3-0.6b --streams 256 --http  the same, then 256 SSE streams over HTTP

The server is one process, all clients are another. The workloads and their measurement are those of ``draftline bench
serve``, with ``load`` besides: a closed loop of each number of --clients. Results are JSON lines, on standard output or in
--output; a table of them goes to standard error.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import torch
import uvloop
from common.arguments import add_model, add_output, fill, positive_int, positive_ints, refuse
from common.server import server
from common.settings import add_settings, engine_options
from load.sse import measure_sse
from load.streams import measure_streams, offline, streams_workload
from rich.table import Table

from draftline.engine.bench.contenders.engines import BenchmarkModel
from draftline.engine.bench.lines import ResultLines, result_lines
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.load.lengths import Lengths
from draftline.engine.bench.load.workloads import WORKLOADS, Workload, find_workload
from draftline.engine.bench.measure import LoadBench
from draftline.engine.bench.plots.canvas import check_plot
from draftline.engine.bench.plots.sweep import plot_sweep
from draftline.engine.bench.provenance import conditions
from draftline.engine.bench.tables import load_table
from draftline.engine.bench.targets.connect import connect
from draftline.engine.cli.bench.output import console
from draftline.engine.config import EngineConfig
from draftline.engine.errors import DraftlineError
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

LOAD = "load"
"""The closed loop. Its clients each send the next request as soon as they have the answer."""

CLIENTS = "1,2,4,8,16,32,64,128"
CPU_DEFAULT = ("baseline",)
"""The default workloads on a CPU. On a GPU the default is all."""

_OF_LOAD: Mapping[str, object] = {"clients": positive_ints(CLIENTS), "plot": None}
"""The arguments of the workload `LOAD`, with their defaults."""

_OF_WORKLOADS: Mapping[str, object] = {
    "workloads": None, "preset": "medium", "repeats": 1, "ttft_limit": 1.0, "tpot_limit": 0.05, **_OF_LOAD
}  # fmt: skip
"""The arguments of workloads."""

_OF_STREAMS: Mapping[str, object] = {"http": False, "prompt_len": 128, "output_len": 256, "best_of": 2}
"""The arguments of --streams."""

_ARGUMENTS = {"model": "use --model or --shape"}
"""The options that have arguments of their own."""

_SET_BY_STREAMS = dict.fromkeys(
    ("drafter", "max_num_seqs", "prefix_caching", "max_model_len", "engine_process", "http_port"), "--streams sets it"
)

_SEEDS_APART = 1_000_000
"""Between the seeds of two workloads: none begins with the prompts of another."""


def served_model(address: str) -> pb.GetModelResponse:
    """The model that the server serves."""
    with grpc.insecure_channel(address) as channel:
        return InferenceServiceStub(channel).GetModel(pb.GetModelRequest())


def streams_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """The results of --streams."""
    shown = Table(title=f"{lines[0]['model']} ({lines[0]['dtype']}), {lines[0]['machine']}", title_justify="left")
    for name in ("workload", "way", "tokens/s", "of offline", "tokens a message", "server CPU µs a token"):
        shown.add_column(name, justify="right")
    for line in lines:
        shown.add_row(
            line["workload"],
            line["way"],
            f"{line['tokens_per_s']:,.0f}",
            f"{line['of_offline']:.1%}",
            f"{line['tokens_a_message']:.1f}",
            f"{line['server_cpu_us_a_token']:.1f}",
        )
    return shown


def chosen(names: str | None, on_gpu: bool) -> list[str]:
    """The workloads of a comma-separated list, or the default.

    Raises:
        ValueError: a workload is unknown.
    """
    known = [*WORKLOADS, LOAD]
    if names == "all" or (names is None and on_gpu):
        return known
    if names is None:
        return list(CPU_DEFAULT)
    wanted = [name.strip() for name in names.split(",")]
    return [name if name == LOAD else find_workload(name, "small").name for name in wanted]


def closed_loop(clients: int) -> Workload:
    """So many clients, with four requests each: prompts of 128 to 512 tokens, answers of 128."""
    return Workload(LOAD, 4 * clients, Lengths(128, 512), Lengths(128, 128), max_concurrent=clients)


async def measure_loads(address: str, arguments: argparse.Namespace, lines: ResultLines) -> None:
    """Put each workload on a server, one after the other."""
    target = await connect(f"grpc://{address}")
    info = replace(target.info, model=arguments.shape or arguments.model)
    try:
        for index, name in enumerate(arguments.workloads):
            config = LoadConfig(
                workload=CPU_DEFAULT[0] if name == LOAD else name,
                preset=arguments.preset,
                repeats=arguments.repeats,
                seed=_SEEDS_APART * index,
                ttft_limit=arguments.ttft_limit,
                tpot_limit=arguments.tpot_limit,
            )
            bench = LoadBench(target, config, lines, info)
            if name != LOAD:
                await bench.measure(config.resolved(), {}, lambda answer: None)
                continue
            for clients in arguments.clients:
                await bench.measure(closed_loop(clients), {"clients": clients}, lambda answer: None)
    finally:
        await target.close()


def measure_all_streams(
    arguments: argparse.Namespace, model: BenchmarkModel, options: Mapping[str, object], lines: ResultLines
) -> None:
    """Measure --streams, over gRPC and, if wanted, over HTTP."""
    workload = streams_workload(arguments.streams, arguments.prompt_len, arguments.output_len)
    # No prefix caching in either: prompts repeat in every round. The engine has a process of its own, as on a GPU, so that
    # the server's processor time is known.
    own = {"drafter": "none", "max_num_seqs": arguments.streams, "prefix_caching": False}
    served = {
        "model": model.checkpoint,
        **options,
        **own,
        "max_model_len": workload.max_model_len,
        "engine_process": True,
    }
    with server(served | ({"http_port": 0} if arguments.http else {})) as process:
        info = served_model(process.grpc)
        same = (workload, info.vocab_size, arguments.best_of, process.pid)
        found = list(measure_streams(process.grpc, *same))
        if arguments.http:
            found.append(measure_sse(process.http, *same))
    # Last: it keeps the device's memory. Options of the server alone have no part in it.
    of_engine = {name: value for name, value in {**options, **own}.items() if name in EngineConfig.model_fields}
    rate = offline(model, workload, arguments.best_of, of_engine)
    common = {"benchmark": "streams", "model": model.name, "dtype": info.dtype, "offline_tokens_per_s": rate}
    for line in found:
        lines.write({**common, **line, "of_offline": line["tokens_per_s"] / rate})


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model(parser)
    names = ", ".join([*WORKLOADS, LOAD])
    parser.add_argument("--workloads", help=f"comma-separated, of {names}, or all (default: baseline; all on a GPU)")
    parser.add_argument(
        "--preset", choices=("small", "medium", "large"), help=f"size of the workloads but {LOAD} (default: medium)"
    )
    parser.add_argument("--clients", type=positive_ints, help=f"of the workload {LOAD} (default: {CLIENTS})")
    parser.add_argument("--repeats", type=positive_int, help="runs of each workload; several show noise (default: 1)")
    parser.add_argument(
        "--streams", type=positive_int, help="instead: compare this many concurrent streams with offline throughput"
    )
    parser.add_argument("--http", action="store_true", help="also send the --streams over HTTP, as SSE streams")
    parser.add_argument("--prompt-len", type=positive_int, help="prompt tokens of each of the --streams (default: 128)")
    parser.add_argument("--output-len", type=positive_int, help="output tokens of each of the --streams (default: 256)")
    parser.add_argument("--best-of", type=positive_int, help="rounds of --streams (default: 2)")
    parser.add_argument("--ttft-limit", type=float, help="seconds, for goodput (default: 1)")
    parser.add_argument("--tpot-limit", type=float, help="seconds, for goodput (default: 0.05)")
    add_settings(parser, "an option of the server, such as --set max_model_len=8192")
    parser.add_argument("--plot", type=Path, help=f"plot the workload {LOAD} to this SVG file")
    add_output(parser)
    arguments = parser.parse_args(argv)
    if arguments.streams:
        refuse(parser, arguments, _OF_WORKLOADS, "belongs to workloads, not to --streams")
    else:
        refuse(parser, arguments, _OF_STREAMS, "needs --streams")
        try:
            arguments.workloads = chosen(arguments.workloads, torch.cuda.is_available())
        except ValueError as error:
            parser.error(f"--workloads: {error}")
        if LOAD not in arguments.workloads:
            refuse(parser, arguments, _OF_LOAD, f"needs the workload {LOAD}: --workloads {LOAD}")
        if arguments.workloads == [LOAD]:
            refuse(parser, arguments, ["preset"], f"the workload {LOAD} has one size")
    fill(arguments, {**_OF_WORKLOADS, **_OF_STREAMS})
    return arguments


def measure(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run the measurements; write each result as soon as it is known."""
    model = BenchmarkModel.chosen(arguments.model, arguments.shape, folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.plot is not None:
        check_plot(arguments.plot)
    own = _ARGUMENTS | (_SET_BY_STREAMS if arguments.streams else {})
    options = {"load_format": model.load_format} | engine_options(arguments.set, own=own)
    with result_lines(arguments.output, conditions(device)) as lines:
        if arguments.streams:
            measure_all_streams(arguments, model, options, lines)
            return lines.written
        with server({"model": model.checkpoint, **options}) as process:
            uvloop.run(measure_loads(process.grpc, arguments, lines))
    return lines.written


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    arguments = _arguments(argv)
    with tempfile.TemporaryDirectory() as folder:
        try:
            results = measure(arguments, Path(folder))
        except (ValueError, DraftlineError) as error:
            raise SystemExit(str(error)) from None
    if arguments.streams:
        console().print(streams_table(results))
        return
    for loads in (False, True):
        if shown := [line for line in results if ("clients" in line) == loads]:
            varied = ["clients"] if loads else ["workload"]
            console().print(load_table(shown, [*varied, *(["run"] if arguments.repeats > 1 else [])]))
    if arguments.plot is not None:
        plot_sweep([line for line in results if "clients" in line], "clients", arguments.plot)


if __name__ == "__main__":
    main()
