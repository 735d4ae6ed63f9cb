"""``draftline bench exactness``: whether answers stay equal, bit for bit, however they are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.numbers import names
from draftline.engine.bench.provenance import conditions_of
from draftline.engine.cli.bench.output import OutputFile, console
from draftline.engine.cli.models import find_models
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.options import flag

_SUITES = "greedy,seeded,constrained"


def exactness(
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="lines of text, JSON lines of prompts, Spec-Bench's form or ShareGPT's; own texts where unset",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="number of questions")] = 8,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="most tokens of an answer")] = 32,
    suites: Annotated[str, typer.Option(metavar="NAME,…", help="how the questions are asked")] = _SUITES,
    columns: Annotated[
        str, typer.Option(metavar="NAME,…", help="ways to compute the answers; all where unset", show_default=False)
    ] = "",
    output: OutputFile = None,
    *,
    engine: EngineConfig,
) -> None:
    """Ask questions alone, again, in batches, in chunks, after preemption and with drafts, and compare the bits.

    Each way counts what it is about, such as preemptions; where that count is 0, it has shown nothing and fails. The
    exit code is 1 if any answer differs.

    **Examples**

    - `draftline bench exactness`
    - `draftline bench exactness --kv-cache-dtype fp8 --suites greedy --columns again,preempted`
    """
    find_models(engine)
    from draftline.engine.bench.exact.columns import REFUSED_OPTIONS  # these import torch, which takes seconds
    from draftline.engine.bench.exact.measure import measure
    from draftline.engine.bench.exact.results import holds, table
    from draftline.engine.bench.exact.suites import SUITES, suite
    from draftline.engine.bench.exact.suites import questions as read

    for name, reason in REFUSED_OPTIONS.items():
        if name in engine.model_fields_set:
            raise UsageError(f"{flag(name)}: {reason}")
    chosen = [name.strip() for name in suites.split(",")]
    for name in chosen:
        if name not in SUITES:
            raise UsageError(f"--suites: {name or repr(name)}: not one of {', '.join(SUITES)}")
    draft_model = engine.draft_model or ("smollm2-draft" if engine.model == "smollm2" else None)
    given = {"model": engine.model, **engine.model_dump(exclude_unset=True)}
    if draft_model is not None:
        given["draft_model"] = draft_model
    shown = console()
    try:
        asked = {name: suite(name, read(questions, limit), max_tokens) for name in chosen}
        about = {
            **conditions_of(engine),
            "benchmark": "exactness",
            "model": engine.model,
            "draft_model": draft_model,
            "kv_cache_dtype": engine.kv_cache_dtype,
        }
        with result_lines(output, about) as lines:
            for result in measure(given, asked, max_tokens, names(columns)):
                lines.write(result)
                if shown.is_terminal:
                    equal = f"{result['equal']} of {result['questions']} equal"
                    shown.print(f"{result['suite']}, {result['column']}: {equal}")
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    shown.print(table(lines.written))
    if not all(map(holds, lines.written)):
        raise typer.Exit(1)
