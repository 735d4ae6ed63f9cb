"""Chats with tools and reasoning for a model whose tokens are bytes, and what their outputs have to be by definition."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import torch
from byte_compilers import CommonCompiler
from tiny import CONFIG, Client, tiny_core

from draftline.engine.chat.calls import Tool, ToolCallDelta, ToolChoice
from draftline.engine.chat.messages import Chat
from draftline.engine.core import Core
from draftline.engine.outputs import CompletionOutput, Delta, FinishReason
from draftline.engine.params import Constraint, SamplingParams
from draftline.engine.tools.formats import FORMATS, REASONING_MARKS
from draftline.kernels.batch import Batch, KVCache
from draftline.models.hidden_states import NO_HIDDEN_STATES, HiddenStateSink
from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.compiler import CompilerLimits, ConstraintCompiler
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.vocabulary import ByteVocabulary

SPECIAL = (
    "[TOOL_CALLS]",
    "[ARGS]",
    "<｜tool▁calls▁begin｜>",  # noqa: RUF001
    "<｜tool▁call▁begin｜>",  # noqa: RUF001
    "<｜tool▁sep｜>",  # noqa: RUF001
    "<｜tool▁call▁end｜>",  # noqa: RUF001
    "<｜tool▁calls▁end｜>",  # noqa: RUF001
    "</think>",
)
"""The names of the last tokens, whose bytes no text has."""

FIRST_SPECIAL = 256 - len(SPECIAL)

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Łódź", "<tool_call>"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "metric": {"type": "boolean"},
    },
    "required": ["city"],
}
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "maxLength": 3},
        "where": {"$ref": "#/$defs/place"},
        "tags": {"type": "array", "items": {"enum": ["}", "]", ")"]}, "maxItems": 2},
    },
    "required": ["where"],
    "$defs": {"place": {"type": "object", "properties": {"x": {"enum": [0.5, 1, None]}}, "required": ["x"]}},
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"left": {"$ref": "#/$defs/leaf"}},
    "required": ["left"],
    "$defs": {"leaf": {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 1}},
}
"""It recurses, so no automaton enforces it."""

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}

TOOLS = (
    Tool("get_weather", "The weather.", json.dumps(CITY)),
    Tool("get", "", json.dumps(NESTED)),
    Tool("no-op", "", json.dumps(NO_ARGUMENTS)),
    Tool("tree", "", json.dumps(TREE)),
)
ANSWER: dict[str, Any] = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"]}


@functools.cache
def tool_compiler() -> ConstraintCompiler:
    """Compiles constraints for the tiny model with special tokens."""
    tokens = tuple(bytes([token]) if 0 < token < FIRST_SPECIAL else b"" for token in range(CONFIG.vocab_size))
    ends = frozenset(CONFIG.eos_token_ids)
    names = {name: FIRST_SPECIAL + index for index, name in enumerate(SPECIAL)}
    special = ends | frozenset(names.values())
    vocabulary = ByteVocabulary(tokens, ends, special, lambda text: list(text.encode()), names)
    # What is refused for its time is another test's; these run for minutes, also on a busy machine.
    limits = CompilerLimits(automaton=AutomatonLimits(seconds=60), grammar=GrammarLimits(seconds=60, mask_seconds=10))
    return CommonCompiler(vocabulary, limits)


class TableModel:
    """A model whose logits depend on a token and its position alone: thousands of calls take minutes with it."""

    config = CONFIG
    dtype = cache_dtype = torch.float32
    device = torch.device("cpu")
    quantization = "F32"
    nbytes = 0

    def __init__(self) -> None:
        """The same in every process."""
        self._logits = 3 * torch.randn(13, CONFIG.vocab_size, CONFIG.vocab_size, generator=torch.manual_seed(0))

    def forward(self, batch: Batch, cache: KVCache, sink: HiddenStateSink = NO_HIDDEN_STATES) -> torch.Tensor:
        """The logits. Nothing is written to the cache, and ``sink`` gets nothing."""
        index = batch.logits_index
        return self._logits[batch.positions[index] % len(self._logits), batch.token_ids[index]]


def tool_core(tool_format: str, *, reasoning: bool = False, **options: Any) -> Core:
    """A core of the tiny model, which writes calls in a format."""
    marks = REASONING_MARKS[0] if reasoning else None
    return tiny_core(compiler=tool_compiler(), tool_format=tool_format, reasoning=marks, **options)


@dataclass(frozen=True, slots=True)
class ToolCase:
    """A request with tools."""

    chat: Chat
    sampling: SamplingParams
    constraint: Constraint | None


def tool_case(number: int, tool_format: str, *, reasoning: bool) -> ToolCase:
    """A random request."""
    source = random.Random(number)
    regular = source.random() < 0.8
    known = [tool for tool in TOOLS if regular != (tool.name == "tree") or source.random() < 0.3]
    tools = source.sample(known, source.randint(1, len(known)))
    mode = source.choice(["auto", "auto", "required", "required", "none"])
    names = (source.choice(tools).name,) if mode != "none" and source.random() < 0.2 else ()
    how = FORMATS[tool_format]
    # The random model would hardly begin a call, or end its reasoning.
    first = (how.trigger or how.open or how.before_name).encode()
    bias = {byte: source.choice([0.0, 6.0]) for byte in first[:4]}
    for index, name in enumerate(SPECIAL):
        if name in (how.trigger, "</think>"):
            bias[FIRST_SPECIAL + index] = source.choice([0.0, 7.0])
    if how.arguments == "python":
        tools = [tool for tool in tools if tool.name != "no-op"] or [TOOLS[0]]
        names = tuple(name for name in names if any(tool.name == name for tool in tools))
    chat = Chat(
        [{"role": "user", "content": "x" * source.randrange(1, 4)}],
        tools=tools,
        tool_choice=ToolChoice(mode, names),  # type: ignore[arg-type]
        parallel_tool_calls=source.random() < 0.7,
        max_reasoning_tokens=source.choice([None, 12, 30]) if reasoning else None,
    )
    sampling = SamplingParams(
        temperature=source.choice([0.0, 0.8, 1.2]),
        max_tokens=source.randrange(120, 260),
        n=source.choice([1, 1, 3]),
        seed=number,
        stop=("q",) if source.random() < 0.1 else (),
        logit_bias={**bias, 0: -2.0},
    )
    constraint = Constraint(json_schema=json.dumps(ANSWER)) if source.random() < 0.2 else None
    if how.first_character == "{" and mode == "auto":
        constraint = None  # the engine refuses both
    return ToolCase(chat, sampling, constraint)


def calling_case(number: int, tool_format: str, *, reasoning: bool) -> ToolCase:
    """A random request whose outputs make many calls: little white space, and no end before the last token."""
    case = tool_case(number, tool_format, reasoning=reasoning)
    source = random.Random(~number)
    tools = case.chat.tools
    choice = ToolChoice("required", (source.choice(tools).name,) if source.random() < 0.1 else ())
    chat = case.chat.with_options(
        tool_choice=choice, parallel_tool_calls=source.random() < 0.95, max_reasoning_tokens=12 if reasoning else None
    )
    bias = {0: -8.0, ord(" "): -3.0, ord("\n"): -3.0}
    sampling = SamplingParams(
        temperature=source.choice([0.0, 0.8, 1.2]),
        max_tokens=source.randrange(160, 290),
        n=source.choice([1, 1, 3]),
        seed=number,
        logit_bias=bias,
    )
    return ToolCase(chat, sampling, None)


def run(cases: dict[str, ToolCase], core: Core) -> tuple[dict[str, list[CompletionOutput]], Client]:
    """The outputs of some requests that run together."""
    client = Client(core)
    for name, case in cases.items():
        client.submit(name, case.chat, case.sampling, int(name) % 3, constraint=case.constraint)
    return {name: whole.outputs for name, whole in client.run().items()}, client


def streamed_calls(client: Client, name: str, index: int) -> list[tuple[str, str, str]]:
    """The id, name and arguments of each call of an output, put together from its deltas."""
    parts: Iterable[ToolCallDelta] = (
        part
        for request, update in client.updates
        if request == name and isinstance(update, Delta) and update.index == index
        for part in update.tool_calls
    )
    calls: list[list[str]] = []
    for part in parts:
        if part.index == len(calls):
            assert part.id
            assert part.name
            calls.append([part.id, part.name, ""])
        calls[part.index][2] += part.arguments
    return [(one, two, three) for one, two, three in calls]


def check_output(output: CompletionOutput, case: ToolCase, streamed: list[tuple[str, str, str]]) -> int:
    """Check an output; the number of its calls."""
    finished = output.finished
    assert finished is not None
    schemas = {tool.name: json.loads(tool.parameters) for tool in case.chat.tools}
    choice = case.chat.tool_choice
    for call in finished.tool_calls:
        arguments = json.loads(call.arguments)
        assert jsonschema_rs.is_valid(schemas[call.name], arguments), call
        assert arguments.keys() <= schemas[call.name]["properties"].keys()
        assert not choice.names or call.name in choice.names
    done = [(call.id, call.name, call.arguments) for call in finished.tool_calls]
    assert streamed[: len(done)] == done
    assert len(streamed) <= len(done) + 1
    assert len({call.id for call in finished.tool_calls}) == len(finished.tool_calls)
    if choice.mode == "none":
        assert not streamed
    if case.chat.parallel_tool_calls is False or choice.single:
        assert len(streamed) <= 1
    if choice.mode == "required":
        assert not output.text
        if finished.finish_reason is FinishReason.EOS:
            assert finished.tool_calls
    if finished.finish_reason is FinishReason.EOS:
        assert finished.constraint_complete
        assert len(streamed) == len(done)
        if case.constraint is not None and not finished.tool_calls:
            assert jsonschema_rs.is_valid(ANSWER, json.loads(output.text))
    if case.constraint is not None and finished.tool_calls:
        assert not output.text
    if output.reasoning is not None:
        assert "</think>" not in output.reasoning
    limit = case.chat.max_reasoning_tokens
    if limit is not None and finished.finish_reason is FinishReason.EOS:
        assert len((output.reasoning or "").encode()) < limit
    return len(done)
