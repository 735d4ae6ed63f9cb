"""``draftline generate``: complete one prompt, and print the text as it comes."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from draftline.engine.chat.messages import Chat
from draftline.engine.cli.backend import backend
from draftline.engine.cli.connection import Connection
from draftline.engine.cli.errors import standard_input
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.options import flag
from draftline.engine.outputs import Delta, Finished, Update
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.prompt_input import as_prompt


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="the text to continue; standard input where it is not given")
    ] = None,
    as_chat: Annotated[
        bool, typer.Option("--chat", help="send the prompt as a user's message, not as raw text")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the outputs as JSON, when they are complete")] = False,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="use a running server instead of loading the model")
    ] = None,
    *,
    sampling: SamplingParams,
    speculation: Speculation,
    constraint: Constraint | None,
    engine: EngineConfig,
    connection: Connection,
) -> None:
    """Complete a prompt, and print the text as it comes.

    The text goes to standard output. A summary goes to standard error: tokens, speed, why the output ended, and its
    seed.

    **Examples**

    - `draftline generate "The sky is" --max-tokens 32 --temperature 0`
    - `draftline generate --chat "Name three rivers." --seed 7`
    - `draftline generate --chat "Invent a person." --schema person.json --whitespace spaced`
    - `draftline generate "The sky is" --server gpu7:50051 --ca ca.pem`, with the token in `DRAFTLINE_TOKEN`
    - `cat notes.txt | draftline generate --server localhost:50051 --n 2 --json`
    """
    if not as_json:
        refuse_logprobs(sampling, "only --json prints log-probabilities")
    text = standard_input().read() if prompt is None else prompt
    if not text:
        raise UsageError("the prompt is empty: give it as an argument or on standard input")
    whole = Chat((("user", text),)) if as_chat else as_prompt(text)
    request = GenerateRequest(whole, sampling, constraint, speculation)
    with backend(server, engine, connection) as generator, closing(generator.generate(request)) as updates:
        if as_json:
            print_json(text, updates, sampling.n)
        elif sampling.n == 1:
            print_stream(updates)
        else:
            print_each(updates, sampling.n)


def refuse_logprobs(sampling: SamplingParams, reason: str) -> None:
    """Raise `UsageError` if log-probabilities are asked for that would not be printed."""
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(sampling, name) is not None:
            raise UsageError(f"{flag(name)}: {reason}")


def print_stream(updates: Iterator[Update]) -> None:
    """Print one output as it comes, then its summary on standard error."""
    for update in updates:
        if isinstance(update, Delta):
            typer.echo(update.text, nl=False)
            sys.stdout.flush()
        elif isinstance(update, Finished):
            typer.echo()
            typer.echo(summary_with_seed(update), err=True)


def print_each(updates: Iterator[Update], n: int) -> None:
    """Print several outputs, each when it is complete, with its summary on standard error."""
    texts = [""] * n
    for update in updates:
        if isinstance(update, Delta):
            texts[update.index] += update.text
        elif isinstance(update, Finished):
            typer.echo(f"[{update.index}] {texts[update.index]}")
            typer.echo(f"[{update.index}] {summary_with_seed(update)}", err=True)


def print_json(prompt: str, updates: Iterator[Update], n: int) -> None:
    """Print the outputs as one JSON object, with every field of their updates."""
    outputs: list[dict[str, object]] = [{} for _ in range(n)]
    deltas = [[Delta(index, (), "")] for index in range(n)]
    for update in updates:
        if isinstance(update, Delta):
            deltas[update.index].append(update)
        elif isinstance(update, Finished):
            whole = dataclasses.asdict(Delta.merge(deltas[update.index])) | dataclasses.asdict(update)
            outputs[update.index] = whole | {"finish_reason": update.finish_reason.name.lower()}
    typer.echo(json.dumps({"prompt": prompt, "outputs": outputs}, ensure_ascii=False, indent=2))


def summary(end: Finished) -> str:
    """Summarize an output in one line: its tokens, its speed and why it ended."""
    tokens = end.usage.completion_tokens
    speed = tokens / end.timing.total_s if end.timing.total_s else 0.0
    parts = [
        f"{end.usage.prompt_tokens} prompt + {tokens} output tokens",
        f"{speed:.1f} tokens/s",
        f"first token after {end.timing.first_token_s:.2f} s",
        f"finished: {end.finish_reason.name.lower()}" + (f" {end.matched_stop!r}" if end.matched_stop else ""),
    ]
    if end.constraint_complete is not None:
        parts.append("complete" if end.constraint_complete else "incomplete: the constraint asks for more")
    if end.broken_off is not None:
        parts.append(f"broke off at {end.broken_off.pointer or 'the root'} (byte {end.broken_off.byte_offset})")
    if end.unenforced:
        parts.append("not enforced: " + " ".join(end.unenforced))
    if end.speculation.drafted:
        parts.append(f"{end.speculation.accepted} of {end.speculation.drafted} drafts accepted")
    if end.speculation.synthetic:
        parts.append("synthetic acceptance: the output is meaningless")
    return ", ".join(parts)


def summary_with_seed(end: Finished) -> str:
    """Summarize an output, with the seed that gives it again."""
    return f"{summary(end)}, seed {end.seed}"
