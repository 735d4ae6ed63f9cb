r"""How many answers stay equal, bit for bit, however they are computed: tokens and log-probabilities.

    python benchmarks/exactness.py --limit 8 --max-tokens 32
    python benchmarks/exactness.py --questions question.jsonl --dtype bfloat16 --kv-cache-dtype auto,fp8,int8
    python benchmarks/exactness.py --shape llama-3.1-8b --draft-shape llama-3.2-1b --quantization auto,fp8,int8

The reference is each question asked alone: by an engine without prefix cache and drafts, one request at a time. Every
column asks a new engine in another way: again (prompts come from the prefix cache), in batches of 8 and 64, in small
chunks, with a cache so small that rows are preempted, with each drafter, without CUDA graphs, in a fresh process. A
column counts what it is about (prefix hits, preemptions, drafts); where that count is 0, it has shown nothing and fails.

- ``greedy``: at temperature 0.
- ``seeded``: at temperature 1, each question with its own seed.
- ``constrained``: greedily, every answer a JSON record.

Results are JSON lines, on standard output or in --output; a table of each configuration goes to standard error. The
exit status is 1 if any answer differs or any column has shown nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from common.arguments import add_model, add_output, positive_int, some_names
from common.settings import add_settings, engine_options

from draftline.engine.bench.contenders.engines import BenchmarkModel
from draftline.engine.bench.contenders.shapes import find_shape
from draftline.engine.bench.exact.columns import REFUSED_OPTIONS
from draftline.engine.bench.exact.measure import measure
from draftline.engine.bench.exact.results import holds, table
from draftline.engine.bench.exact.suites import SUITES, questions, random_prompts, suite
from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.numbers import names
from draftline.engine.bench.provenance import conditions_of
from draftline.engine.cli.bench.output import console
from draftline.engine.config import EngineConfig
from draftline.engine.options import flag
from draftline.engine.protocol import Prompt

_ARGUMENTS = {
    "model": "use --model or --shape",
    "draft_model": "use --draft-model or --draft-shape",
    **{name: f"use {flag(name)}" for name in ("dtype", "quantization", "kv_cache_dtype")},
    **REFUSED_OPTIONS,
}
"""The options that are not for --set, with what sets them."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model(parser)
    draft = parser.add_mutually_exclusive_group()
    draft.add_argument("--draft-model", help="a draft model (default: smollm2's own for smollm2, else none)")
    draft.add_argument("--draft-shape", help="a draft model with random weights, for --shape")
    parser.add_argument(
        "--questions", type=Path, help="a question file of Spec-Bench (default: texts of the benchmark)"
    )
    parser.add_argument("--limit", type=positive_int, help="the number of questions (default: all; 64 without a file)")
    parser.add_argument("--max-tokens", type=positive_int, default=128, help="longest answer (default: 128)")
    parser.add_argument("--dtype", type=some_names, default="auto", help="comma-separated (default: auto)")
    parser.add_argument(
        "--quantization", type=some_names, default="auto", help="comma-separated: auto, fp8, int8 (default: auto)"
    )
    parser.add_argument(
        "--kv-cache-dtype", type=some_names, default="auto", help="comma-separated: auto, bfloat16, fp8, int8"
    )
    parser.add_argument(
        "--suites", type=some_names, default=",".join(SUITES), help=f"comma-separated, of {', '.join(SUITES)}"
    )
    parser.add_argument("--columns", type=names, default="", help="comma-separated (default: all)")
    add_settings(parser, "an option of all engines")
    add_output(parser)
    arguments = parser.parse_args(argv)
    for name in arguments.suites:
        if name not in SUITES:
            parser.error(f"--suites {name}: not one of {', '.join(SUITES)}")
    if arguments.draft_shape and not arguments.shape:
        parser.error("--draft-shape: random weights are for --shape only")
    if arguments.questions and arguments.shape:
        parser.error("--questions: random weights are asked random prompts")
    return arguments


def _common(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The options of all engines, and the draft model's."""
    common: dict[str, Any] = {"model": arguments.model}
    draft_model = arguments.draft_model or ("smollm2-draft" if arguments.model == "smollm2" else None)
    if arguments.shape is not None:
        model = BenchmarkModel.of_shape(arguments.shape, find_shape(arguments.shape), folder / "target")
        common |= {"model": model.checkpoint, "load_format": "dummy"}
        draft_model = arguments.draft_model
        if arguments.draft_shape is not None:
            shape = find_shape(arguments.draft_shape)
            draft_model = BenchmarkModel.of_shape(arguments.draft_shape, shape, folder / "draft").checkpoint
    if draft_model is not None:
        common["draft_model"] = draft_model
    return common | engine_options(arguments.set, own=_ARGUMENTS)


def _prompts(arguments: argparse.Namespace) -> list[Prompt]:
    if arguments.shape is not None:
        return random_prompts(arguments.limit, int(find_shape(arguments.shape)["vocab_size"]))
    return questions(arguments.questions, arguments.limit)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    arguments = _arguments(argv)
    all_hold = True
    with tempfile.TemporaryDirectory() as folder:
        try:
            common = _common(arguments, Path(folder))
            prompts = _prompts(arguments)
            suites = {name: suite(name, prompts, arguments.max_tokens) for name in arguments.suites}
            lists = (arguments.dtype, arguments.quantization, arguments.kv_cache_dtype)
            for dtype, quantization, cache_dtype in product(*lists):
                chosen = {"dtype": dtype, "quantization": quantization, "kv_cache_dtype": cache_dtype}
                given = common | chosen
                about = {
                    **conditions_of(EngineConfig.model_validate(given)),
                    "model": arguments.shape or common["model"],
                    "draft_model": arguments.draft_shape or common.get("draft_model"),
                    **chosen,
                }
                with result_lines(arguments.output, about) as lines:
                    for result in measure(given, suites, arguments.max_tokens, arguments.columns):
                        lines.write(result)
                console(200).print(table(lines.written))
                all_hold &= all(map(holds, lines.written))
        except (OSError, ValueError) as error:
            raise SystemExit(str(error)) from None
    if not all_hold:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
