"""``draftline bench structured``: what a constraint costs, on a user's own prompts and schema."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from tqdm import tqdm

from draftline.engine.bench.documents import PERSON
from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.provenance import conditions_of
from draftline.engine.bench.questions import read_questions
from draftline.engine.cli.bench.output import OutputFile, shown_at_the_end
from draftline.engine.cli.models import find_models
from draftline.engine.config import EngineConfig
from draftline.engine.params import Constraint, SamplingParams


def structured(
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="lines of text, JSON lines of prompts, Spec-Bench's form or ShareGPT's"),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="number of prompts, which is the batch")] = 16,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=2, help="most tokens of an answer")] = 256,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="alternating rounds")] = 5,
    output: OutputFile = None,
    *,
    constraint: Constraint | None,
    engine: EngineConfig,
) -> None:
    """Measure what a constraint costs: a batch with it and without, in turns, with outputs of the same lengths.

    Without `--schema` or another constraint, the answers are records of a person.

    **Examples**

    - `draftline bench structured --schema person.json --prompts prompts.jsonl`
    - `draftline bench structured --regex "[a-z]+" --limit 4`
    """
    wanted = constraint or Constraint(json_schema=json.dumps(PERSON), whitespace="spaced")
    texts = read_questions(prompts, limit)
    given = engine.model_dump(exclude_unset=True)
    config = EngineConfig.model_validate({"prefix_caching": False, **given})
    find_models(config)
    from draftline.engine.bench.constrained import measure  # these import torch, which takes seconds
    from draftline.engine.llm import LLM

    llm = LLM(**config.model_dump(exclude_unset=True))
    try:
        about = {
            **conditions_of(config),
            "benchmark": "structured",
            "model": config.model,
            "device": llm.info.device,
            "dtype": llm.info.dtype,
            "backend": llm.compile(wanted).backend,
            "options": config.model_dump(mode="json", exclude_defaults=True, exclude={"model"}),
        }
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
        with (
            result_lines(output, about) as lines,
            shown_at_the_end(lines, _tables),
            tqdm(total=2 * (rounds + 1), unit="batch", disable=None) as bar,
        ):
            for fields in measure(llm, texts, wanted, sampling, rounds, time.perf_counter, bar.update):
                lines.write(fields)
    finally:
        llm.close()


def _tables(lines: Sequence[dict[str, Any]]) -> list[Table]:
    free, constrained = lines
    title = f"{free['model']} on {free['device']}, {free['rows']} requests, enforced by: {free['backend']}"
    shown = Table(title=title, title_justify="left")
    for name in ("constraint", "tokens/s", "of unconstrained", "lowest–highest", "verdict", "complete", "valid"):
        shown.add_column(name, justify="right")
    shown.add_row("none", f"{free['tokens_per_s']:,.1f}", *[""] * 5)
    shown.add_row(
        "own",
        f"{constrained['tokens_per_s']:,.1f}",
        f"{constrained['of_unconstrained']:.1%}",
        f"{constrained['of_unconstrained_low']:.1%}–{constrained['of_unconstrained_high']:.1%}",
        constrained["verdict"],
        f"{constrained['complete_share']:.0%}",
        f"{constrained['valid_share']:.0%}",
    )
    return [shown]
