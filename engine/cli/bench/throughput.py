"""``draftline bench throughput``: batches of requests that arrive at once, without a server."""

from __future__ import annotations

from typing import Annotated

import typer

from draftline.engine.bench.batches import CPU_WORKLOADS, GPU_WORKLOADS, WORKLOADS, find_workloads
from draftline.engine.bench.contenders.shaped import SHAPE_HELP, check_has_no_model
from draftline.engine.bench.contenders.shapes import find_shape
from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.numbers import names
from draftline.engine.bench.provenance import conditions
from draftline.engine.cli.bench.output import OutputFile, shown_at_the_end
from draftline.engine.cli.models import find_models
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError, temporary_folder

_OTHERS = ("transformers", "llama.cpp")


def throughput(
    workloads: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help=f"of {', '.join(WORKLOADS)}; those for the device where unset"),
    ] = None,
    shape: Annotated[str | None, typer.Option(metavar="NAME|FILE", help=SHAPE_HELP)] = None,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="rounds of each workload")] = 3,
    compare: Annotated[
        str,
        typer.Option(metavar="NAME,…", help=f"other engines, in turns, of {', '.join(_OTHERS)}", show_default=False),
    ] = "",
    output: OutputFile = None,
    *,
    engine: EngineConfig,
) -> None:
    """Measure offline throughput: prompts and outputs of fixed lengths, all requests at once.

    Of one engine the best round counts: disturbances only make a round slower. With `--compare`, rounds alternate and
    medians count. Prefix caching is off, so that every round computes its prompts.

    **Examples**

    - `draftline bench throughput --shape qwen3-0.6b --workloads bs1,bs8,bs64`
    - `draftline bench throughput --workloads cpu1 --compare transformers --rounds 5`
    """
    others = names(compare)
    for name in others:
        if name not in _OTHERS:
            raise UsageError(f"--compare: {name}: not one of {', '.join(_OTHERS)}")
    try:
        chosen = None if workloads is None else find_workloads(workloads)
        if shape is not None:
            find_shape(shape)
    except ValueError as error:
        raise UsageError(f"{'--workloads' if shape is None else '--workloads or --shape'}: {error}") from None
    if shape is None:
        find_models(engine)
    else:
        check_has_no_model(engine)
    # These import torch, which takes seconds.
    from draftline.engine.bench.contenders.engines import BenchmarkModel, Contender, Draftline, Transformers
    from draftline.engine.bench.contenders.llama_cpp import LlamaCpp
    from draftline.engine.bench.throughput import compare as run
    from draftline.engine.bench.throughput import table
    from draftline.engine.runner.device import select_device

    chosen = chosen or (GPU_WORKLOADS if select_device(engine).type == "cuda" else CPU_WORKLOADS)
    longest = max(workload.max_model_len for workload in chosen)
    own = engine.model_dump(exclude_unset=True, exclude={"model", "dtype", "device"})
    with temporary_folder() as folder:
        model = BenchmarkModel.chosen(engine.model, shape, folder)
        ours = Draftline(model, engine.dtype, engine.device, longest, own)
        contenders: list[Contender] = [ours]
        try:
            if "transformers" in others:
                contenders.append(Transformers(model, "bfloat16", ours.device))
            if "llama.cpp" in others:
                contenders.append(LlamaCpp(model, ours.device, longest))
        except ValueError as error:
            raise UsageError(f"--compare: {error}") from None
        with (
            result_lines(output, {**conditions(ours.device), "benchmark": "throughput"}) as lines,
            shown_at_the_end(lines, lambda written: [table(written)]),
        ):
            for workload in chosen:
                for fields in run(contenders, model.name, workload, rounds):
                    lines.write(fields)
