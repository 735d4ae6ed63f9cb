"""``draftline bench speculation``: drafting against plain decoding, on a user's own prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.provenance import conditions_of
from draftline.engine.bench.questions import read_questions
from draftline.engine.chat.messages import Chat
from draftline.engine.cli.bench.numbers import option_ints
from draftline.engine.cli.bench.output import OutputFile, shown_at_the_end
from draftline.engine.cli.models import find_models
from draftline.engine.config import EngineConfig, without_drafts
from draftline.engine.errors import UsageError
from draftline.engine.params import Constraint, SamplingParams
from draftline.engine.protocol import GenerateRequest


def speculation(
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="lines of text, JSON lines of prompts, Spec-Bench's form or ShareGPT's"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="number of prompts, spread over the file; all where unset")
    ] = None,
    concurrency: Annotated[str, typer.Option(metavar="N,N,…", help="requests in flight")] = "1,8",
    max_tokens: Annotated[int, typer.Option(metavar="N", min=2, help="most tokens of an answer")] = 128,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="alternating rounds")] = 5,
    output: OutputFile = None,
    *,
    constraint: Constraint | None,
    engine: EngineConfig,
) -> None:
    """Measure what drafts gain: two engines of one model answer the same prompts in turns, and one never drafts.

    Without `--drafter` and `--draft-model`, n-gram lookup drafts. A gain is claimed only where every one of three
    rounds or more shows it. Answers are greedy, and those that differ are counted: none may, and the exit code is 1 if
    one does.

    **Examples**

    - `draftline bench speculation --prompts prompts.jsonl --limit 40`
    - `draftline bench speculation --schema person.json --drafter ngram --draft-tokens 6`
    """
    limits = option_ints("--concurrency", concurrency)
    texts = read_questions(prompts, limit)
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    requests = [GenerateRequest(Chat((("user", text),)), sampling, constraint) for text in texts]
    given = {"prefix_caching": False, "max_num_seqs": max(limits), **engine.model_dump(exclude_unset=True)}
    if not given.keys() & {"drafter", "draft_model"}:
        given["drafter"] = "ngram"
    asked = EngineConfig.model_validate(given)
    if asked.drafter == "none":
        raise UsageError("--drafter: none drafts nothing to compare")
    find_models(asked)
    from draftline.engine.bench.speculation.compare import measure, tables  # these import torch, which takes seconds
    from draftline.engine.bench.speculation.engines import NO_SHARE, running, shared_cache

    if "gpu_memory_utilization" in given:
        raise UsageError(f"--gpu-memory-utilization: {NO_SHARE}")
    given = shared_cache(asked.device) | given
    drafting, plain = EngineConfig.model_validate(given), EngineConfig.model_validate(without_drafts(given))
    with running(plain) as first, running(drafting) as second:
        steps = len(limits) * 2 * (rounds + 1)
        about = {
            **conditions_of(drafting),
            "benchmark": "speculation",
            "model": drafting.model,
            "draft_model": drafting.draft_model,
            "dataset": prompts.name if prompts else "extraction",
            "constraint": None if constraint is None else "own",
            "options": drafting.model_dump(mode="json", exclude_defaults=True, exclude={"model", "draft_model"}),
        }
        with (
            result_lines(output, about) as lines,
            shown_at_the_end(lines, tables),
            tqdm(total=steps, unit="part", disable=None) as bar,
        ):
            for each in limits:
                for fields in measure(first, [second], requests, each, rounds, bar.update):
                    lines.write(fields)
    if any(line.get("different_answers") for line in lines.written):
        typer.echo("draftline: error: drafts changed an answer: that is a fault of the engine", err=True)
        raise typer.Exit(1)
