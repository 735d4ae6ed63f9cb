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
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.arguments import add_model, add_output, fill, positive_int, refuse, some_names
from common.settings import add_settings, engine_options

from draftline.engine.bench.batches import (
    CPU_WORKLOADS,
    GPU_WORKLOADS,
    WORKLOADS,
    OfflineWorkload,
    find_workloads,
)
from draftline.engine.bench.contenders.engines import BenchmarkModel, Contender, Draftline, Transformers
from draftline.engine.bench.contenders.llama_cpp import LlamaCpp
from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.numbers import names
from draftline.engine.bench.provenance import conditions_of
from draftline.engine.bench.throughput import compare, table
from draftline.engine.cli.bench.output import shown_at_the_end
from draftline.engine.config import EngineConfig
from draftline.engine.runner.device import select_device

_OTHERS = ("transformers", "llama.cpp")

_ARGUMENTS = {"model": "use --model", "dtype": "use --dtype", "device": "use --device"}
"""The options that have arguments of their own."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model(parser)
    parser.add_argument(
        "--workloads",
        help=f"comma-separated, of {', '.join(WORKLOADS)} (default: those for the device)",
    )
    parser.add_argument("--best-of", type=positive_int, default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument(
        "--dtype", type=some_names, default="auto", help="dtypes of Draftline, comma-separated (default: auto)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, … (default: a GPU if there is one)")
    add_settings(parser, "an option of EngineConfig, such as --set max_batched_tokens=16384")
    parser.add_argument(
        "--compare",
        type=names,
        default="",
        metavar="ENGINES",
        help=f"other engines to run, comma-separated, of {', '.join(_OTHERS)}; times are medians then",
    )
    parser.add_argument(
        "--compare-dtype", type=some_names, help="dtypes of transformers, comma-separated (default: bfloat16)"
    )
    add_output(parser)
    arguments = parser.parse_args(argv)
    for name in arguments.compare:
        if name not in _OTHERS:
            parser.error(f"--compare {name}: not one of {', '.join(_OTHERS)}")
    if "transformers" not in arguments.compare:
        refuse(parser, arguments, ["compare_dtype"], "needs --compare transformers")
    fill(arguments, {"compare_dtype": ["bfloat16"]})
    return arguments


def run(arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Run the measurements, and yield the fields of each result as soon as it is known.

    Raises:
        ValueError: an argument is invalid, or there is no such model. The message says which.
    """
    on_gpu = select_device(EngineConfig(device=arguments.device)).type == "cuda"
    workloads: Sequence[OfflineWorkload] = GPU_WORKLOADS if on_gpu else CPU_WORKLOADS
    if arguments.workloads is not None:
        workloads = find_workloads(arguments.workloads)
    model = BenchmarkModel.chosen(arguments.model, arguments.shape, folder)
    max_model_len = max(workload.max_model_len for workload in workloads)
    options = engine_options(arguments.set, own=_ARGUMENTS)
    ours = [Draftline(model, dtype, arguments.device, max_model_len, options) for dtype in arguments.dtype]
    device = ours[0].device
    contenders: list[Contender] = [*ours]
    if "transformers" in arguments.compare:
        contenders += [Transformers(model, dtype, device) for dtype in arguments.compare_dtype]
    if "llama.cpp" in arguments.compare:
        contenders.append(LlamaCpp(model, device, max_model_len))
    for workload in workloads:
        yield from compare(contenders, model.name, workload, arguments.best_of)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    arguments = _arguments(argv)
    with tempfile.TemporaryDirectory() as folder:
        try:
            with (
                result_lines(arguments.output, conditions_of(EngineConfig(device=arguments.device))) as lines,
                shown_at_the_end(lines, lambda written: [table(written)]),
            ):
                for fields in run(arguments, Path(folder)):
                    lines.write(fields)
        except ValueError as error:
            raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
