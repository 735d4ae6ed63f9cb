"""``draftline chat``: a conversation, a line at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from draftline.engine.cli.backend import Backend, RefusedError, backend
from draftline.engine.cli.errors import complain
from draftline.engine.cli.generate import print_stream
from draftline.engine.config import EngineConfig
from draftline.engine.errors import InvalidRequestError
from draftline.engine.params import SamplingParams, Speculation
from draftline.engine.protocol import Chat, GenerateRequest

RESET = "/reset"
EXIT = "/exit"


def chat(
    system: Annotated[str | None, typer.Option(help="the system message that the conversation begins with")] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="ask a running server, instead of loading the model here")
    ] = None,
    *,
    sampling: SamplingParams,
    speculation: Speculation,
    engine: EngineConfig,
) -> None:
    r"""Talk to a model. It remembers the conversation until /reset; /exit or the end of input ends it.

    Ctrl-C stops an answer. Without a terminal each line of standard input is a message.

    **Examples**

    - `draftline chat --system "Answer in one sentence." --temperature 0.7`
    - `printf 'Hello!\nWhat did I just say?\n' | draftline chat --server localhost:50051`
    """
    if sampling.n != 1:
        raise typer.BadParameter("a conversation has one answer at a time", param_hint="--n")
    with backend(server, engine) as generator:
        history = _opening(system)
        for line in _lines():
            if line == RESET:
                history = _opening(system)
            elif line == EXIT:
                return
            elif line:
                history = _answered(generator, [*history, ("user", line)], history, sampling, speculation)


def _opening(system: str | None) -> list[tuple[str, str]]:
    return [] if system is None else [("system", system)]


def _lines() -> Iterator[str]:
    """What the user says: typed at a prompt, or the lines of standard input."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin)
        return
    import readline  # noqa: F401  gives input() editing and history

    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            typer.echo()
            return


def _answered(
    generator: Backend,
    messages: list[tuple[str, str]],
    before: list[tuple[str, str]],
    sampling: SamplingParams,
    speculation: Speculation,
) -> list[tuple[str, str]]:
    """Print the answer, and return the conversation with it; the conversation before, where there is none."""
    request = GenerateRequest(Chat(tuple(messages)), sampling, speculation=speculation)
    try:
        with closing(generator.generate(request)) as updates:
            answer = print_stream(updates)
    except KeyboardInterrupt:
        typer.echo("\n(stopped; the question is forgotten)", err=True)
        return before
    except (InvalidRequestError, RefusedError) as error:  # such as a conversation that has become too long
        complain(f"{error}; {RESET} begins a new conversation")
        return before
    return [*messages, ("assistant", answer)]
