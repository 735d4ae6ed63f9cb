"""``draftline chat``: a conversation, a line at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from draftline.engine.chat.messages import Chat
from draftline.engine.cli.backend import Backend, RefusedError, backend
from draftline.engine.cli.connection import Connection
from draftline.engine.cli.errors import print_error, standard_input
from draftline.engine.cli.generate import refuse_logprobs, summary, summary_with_seed
from draftline.engine.cli.local_tools import LocalTool, print_answer, read_tools
from draftline.engine.cli.models import find_models
from draftline.engine.config import EngineConfig
from draftline.engine.errors import InvalidRequestError
from draftline.engine.outputs import Finished
from draftline.engine.params import SamplingParams, Speculation
from draftline.engine.protocol import GenerateRequest
from draftline.engine.validation import violations
from draftline.models.checkpoints.generation_config import PLACES, recommended_sampling
from draftline.models.checkpoints.resolve import ModelSource
from draftline.models.errors import ModelLoadError

HELP, RESET, EXIT = "/help", "/reset", "/exit"
COMMANDS: Mapping[str, str] = {
    HELP: "list these commands",
    RESET: "begin a new conversation",
    EXIT: "end; so does Ctrl-D",
}
_COMMAND = re.compile(r"/[a-z]+")

Messages = tuple[Mapping[str, Any], ...]
"""A conversation."""

MAX_ROUNDS = 8
"""Answers to one question: a model that calls tools again and again is stopped."""


def chat(
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="the system message that begins the conversation")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="use a running server instead of loading the model")
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COMMAND", help="a command that the model may run, after asking; may be given again"),
    ] = None,
    max_reasoning_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="max tokens of a reasoning model's reasoning")
    ] = None,
    *,
    sampling: SamplingParams,
    speculation: Speculation,
    engine: EngineConfig,
    connection: Connection,
) -> None:
    r"""Talk to a model.

    It remembers the conversation until /reset; /help lists all commands. Ctrl-C stops an answer, Ctrl-D ends. Without a
    terminal each line of standard input is a message, and the exit code is 1 if one was refused.

    A tool's command gets the model's argument as its last argument, and its output goes back to the model.

    Where they are not given, temperature, top-p, top-k, min-p and repetition penalty come from the model's
    generation_config.json or GGUF file.

    **Examples**

    - `draftline chat --system "Answer in one sentence." --temperature 0.7`
    - `draftline chat --tool 'list_files=ls -l'`
    - `printf 'Hello!\nWhat did I just say?\n' | draftline chat --server localhost:50051`
    """
    if sampling.n != 1:
        raise typer.BadParameter("a conversation has one answer at a time", param_hint="--n")
    refuse_logprobs(sampling, "a conversation prints no log-probabilities; draftline generate --json does")
    if server is None:
        sampling = with_recommended(sampling, find_models(engine))
    tools = read_tools(tool or ())
    with backend(server, engine, connection) as generator:
        _say(f"{generator.description()}; temperature {sampling.temperature:g}, top-p {sampling.top_p:g}")
        _say(f"Type a message. {HELP} lists the commands, {EXIT} or Ctrl-D ends.")
        summarize = summary_with_seed if sampling.seed is not None else summary
        asking = partial(Chat, tools=[each.tool for each in tools.values()], max_reasoning_tokens=max_reasoning_tokens)
        talk = _Talk(generator, asking, tools, sampling, speculation, summarize)
        refused = talk.converse(_opening(system))
    if refused and not standard_input().isatty():  # a script sees the exit code alone
        raise typer.Exit(1)


def with_recommended(sampling: SamplingParams, model: ModelSource) -> SamplingParams:
    """Complete the sampling that the user gave with the model's recommended one.

    Raises:
        ModelLoadError: the recommended sampling is out of bounds.
    """
    recommended = recommended_sampling(model)
    try:
        return SamplingParams.model_validate({**recommended, **sampling.model_dump(exclude_unset=True)})
    except ValidationError as error:
        wrong = "; ".join(f"{each.field}: {each.description}" for each in violations(error))
        raise ModelLoadError(f"{model.name}: {PLACES[model.kind]}: {wrong}") from error


@dataclass(frozen=True, slots=True)
class _Talk:
    """A conversation's model, tools and options."""

    generator: Backend
    asking: Callable[[Messages], Chat]
    tools: Mapping[str, LocalTool]
    sampling: SamplingParams
    speculation: Speculation
    summarize: Callable[[Finished], str]

    def converse(self, opening: Messages) -> bool:
        """Answer the user's lines until the end of input or the command to end. Returns whether one was refused."""
        history, refused = opening, False
        for line in _lines():
            if line == EXIT:
                break
            if line == RESET:
                history = opening
                _say("A new conversation begins.")
            elif line == HELP:
                for command, meaning in COMMANDS.items():
                    _say(f"{command:8}{meaning}")
            elif _COMMAND.fullmatch(line):
                _say(f"{line} is not a command; {HELP} lists them.")
            elif line:
                try:
                    history = self._answer((*history, {"role": "user", "content": line})) or history
                except (InvalidRequestError, RefusedError) as error:  # such as a conversation that has become too long
                    print_error(f"{error}; {RESET} begins a new conversation")
                    refused = True
        return refused

    def _answer(self, question: Messages) -> Messages | None:
        """Print the answer, and the calls before it. The conversation with it; None if the question is dropped."""
        messages = question
        try:
            for _ in range(MAX_ROUNDS):
                request = GenerateRequest(self.asking(messages), self.sampling, speculation=self.speculation)
                with closing(self.generator.generate(request)) as updates:
                    answer = print_answer(updates, self.summarize)
                messages = (*messages, answer)
                calls = answer.get("tool_calls", ())
                if not calls:
                    return messages
                for call in calls:
                    result = self.tools[call.name].run(call)
                    messages = (*messages, {"role": "tool", "tool_call_id": call.id, "content": result})
            _say(f"(stopped after {MAX_ROUNDS} rounds of calls)")
        except KeyboardInterrupt:
            _say("\n(stopped; the question is forgotten)")
        return None


def _opening(system: str | None) -> Messages:
    return () if system is None else ({"role": "system", "content": system},)


def _lines() -> Iterator[str]:
    """The user's lines: typed at a prompt, or read from standard input."""
    piped = standard_input()
    if not piped.isatty():
        yield from (line.strip() for line in piped)
        return
    import readline  # noqa: F401  gives input() editing and history

    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            typer.echo()
            return


def _say(line: str) -> None:
    """Print a line that is no part of an answer."""
    typer.echo(line, err=True)
