"""``EngineClient``: the interface of an engine for its faces (gRPC, AsyncEngine, CLI), wherever its step loop runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from draftline.engine.cache_journal import CacheJournal
from draftline.engine.calls import Tool, ToolCall, ToolChoice, as_tool_calls, as_tool_choice, as_tools
from draftline.engine.errors import FieldViolation, InvalidRequestError, no_unicode
from draftline.engine.outputs import Update
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.stats import NO_MEMORY, DevicePeak, EngineStats, MemoryUse
from draftline.models.config import ModelConfig
from draftline.models.tokenization.rendering import AS_USUAL, Rendering

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from draftline.engine.errors import EngineStoppedError
    from draftline.models.tokenization.tokenizer import Tokenizer  # slow to import, and `--help` does not need it
    from draftline.structured.compiler import ConstraintCompiler


Message = Mapping[str, Any]
"""A chat message: ``{"role": ..., "content": ...}``.

An assistant's may have "tool_calls" in OpenAI's form, and "reasoning" (or "reasoning_content"). A tool's has the
"tool_call_id" of the call whose result it is.
"""


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """What a message may have besides its role and content.

    Attributes:
        tool_calls: the calls that the assistant made.
        tool_call_id: the call whose result a tool's message is.
        reasoning: the assistant's reasoning before the content.
    """

    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True, init=False)
class Chat:
    """Chat messages as (role, content) pairs. The model's chat template renders them, as ``rendering`` says.

    Attributes:
        messages: role and content of each.
        rendering: the choices of the chat template.
        details: what some messages have besides, by index.
        tools: the functions that the model may call.
        tool_choice: whether it calls them, and which.
        parallel_tool_calls: whether an output may make several calls.
        max_reasoning_tokens: the reasoning ends within this many tokens, its marks included; None without a limit.
    """

    messages: tuple[tuple[str, str], ...]
    rendering: Rendering
    details: Mapping[int, MessageDetails]
    tools: tuple[Tool, ...]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    max_reasoning_tokens: int | None

    def __init__(
        self,
        messages: Iterable[Message | tuple[str, str]],
        rendering: Rendering = AS_USUAL,
        *,
        tools: Iterable[Tool | Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice | str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
    ) -> None:
        """Make a chat of messages: ``{"role": ..., "content": ...}``, or (role, content) pairs.

        Args:
            messages: the messages; see `Message`.
            rendering: the choices of the chat template.
            tools: the functions that the model may call: `Tool`, or mappings in OpenAI's form.
            tool_choice: "auto", "none", "required", OpenAI's mapping that names a function, or a `ToolChoice`.
            parallel_tool_calls: whether an output may make several calls.
            max_reasoning_tokens: the reasoning ends within this many tokens, its marks included.

        Raises:
            InvalidRequestError: something else is among them. The violation's field is its path, as in the proto.
        """
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
            problem = f"must be a list of {_A_MESSAGE} messages, not {kind_of(messages)}"
            raise InvalidRequestError(FieldViolation("chat.messages", problem))
        given = list(messages)
        pairs = tuple(_message(f"chat.messages[{index}]", message) for index, message in enumerate(given))
        details = {
            index: found
            for index, message in enumerate(given)
            if isinstance(message, Mapping) and (found := _details(f"chat.messages[{index}]", message)) != NO_DETAILS
        }
        if max_reasoning_tokens is not None and (type(max_reasoning_tokens) is not int or max_reasoning_tokens < 1):
            raise InvalidRequestError(
                FieldViolation("chat.max_reasoning_tokens", "must be a number of tokens, 1 or more")
            )
        object.__setattr__(self, "messages", pairs)
        object.__setattr__(self, "rendering", rendering)
        object.__setattr__(self, "details", details)
        object.__setattr__(self, "tools", as_tools(tools, "chat.tools"))
        object.__setattr__(self, "tool_choice", as_tool_choice(tool_choice, "chat.tool_choice"))
        object.__setattr__(self, "parallel_tool_calls", parallel_tool_calls)
        object.__setattr__(self, "max_reasoning_tokens", max_reasoning_tokens)

    def with_options(self, **options: Any) -> Chat:
        """The same messages with other tools or limits: the keywords of the constructor."""
        kept = {
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "max_reasoning_tokens": self.max_reasoning_tokens,
        }
        chat = Chat((), self.rendering, **{**kept, **options})
        object.__setattr__(chat, "messages", self.messages)
        object.__setattr__(chat, "details", self.details)
        return chat


NO_DETAILS = MessageDetails()
"""Of a message that has its role and content alone."""

Prompt = str | Sequence[int] | Chat
"""A text, token ids, or a chat."""

Sink = Callable[[Sequence[tuple[str, Update]]], None]
"""Receives the (request id, update) pairs of one step, on the step thread. It must not block or raise."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request as the client wrote it.

    Attributes:
        prompt: a text, token ids, or a chat.
        sampling: how tokens are sampled, and when an output ends.
        constraint: the language of the output; None for any text.
        speculation: whether and how far the request drafts.
        priority: requests with a higher priority run first; a 32-bit integer.
        timeout_s: seconds from its submission until it times out, whether it has run or not; None without a timeout.
        path: the request's place in the arguments of a call for many, for its errors: ``prompts[3]``. Empty for one request.
        caller: whose request it is: callers share the engine by their weights.
        weight: the caller's share, relative to other callers.
        constraint_compile_s: seconds that it has waited for its constraint, before it is submitted to an engine.
        prompt_token_ids: the tokens of a text or a chat, if they are known already.
    """

    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    constraint: Constraint[Any] | None = None
    speculation: Speculation = Speculation()
    priority: int = 0
    timeout_s: float | None = None
    path: str = ""
    caller: str = ""
    weight: float = 1.0
    constraint_compile_s: float = 0.0
    prompt_token_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The model of an engine, and the engine's limits.

    Attributes:
        model: the model as given to the engine: a name or a path.
        config: the model's configuration.
        eos_token_ids: the end-of-sequence tokens.
        quantization: the formats of the checkpoint's weights.
        dtype: the data type of the computation.
        device: the device of the computation.
        max_model_len: limit of tokens of prompt and output together.
        max_num_seqs: limit of sequences in one step.
        cache_blocks: blocks of the KV cache.
        block_size: tokens in a block.
        drafters: the names of the drafters; empty if speculation is off.
        constraint_kinds: the kinds of constraints that requests may have.
        system_fingerprint: names the device kind, data types, versions and arithmetic. Engines of one model with the same
            fingerprint give the same outputs.
        has_chat_template: whether the model has a chat template, which chats need.
        max_token_bytes: the most bytes of UTF-8 that one token of a prompt stands for.
        tool_format: the name of the format of tool calls; empty if it is not known.
        reasoning: the marks around the model's reasoning; None if it does not reason.
        shows_tools: whether the chat template shows tools; otherwise a system message does.
        scheduling: the order of the queue; see `EngineConfig`.
        peak: the device's peak rates; None where they are not known.
        memory: what the engine has taken on its device.
        device_uuids: the GPUs that it runs on, as the driver names them; empty on a CPU.
        synthetic_acceptance: the rate at which drafts are accepted at random, for a benchmark. None accepts them by the
            model. With a rate, outputs have no meaning.
    """

    model: str
    config: ModelConfig
    eos_token_ids: tuple[int, ...]
    quantization: str
    dtype: str
    device: str
    max_model_len: int
    max_num_seqs: int
    cache_blocks: int
    block_size: int
    drafters: tuple[str, ...]
    constraint_kinds: tuple[str, ...]
    system_fingerprint: str
    has_chat_template: bool
    max_token_bytes: int
    synthetic_acceptance: float | None = None
    tool_format: str = ""
    reasoning: tuple[str, str] | None = None
    shows_tools: bool = False
    scheduling: str = "fair"
    peak: DevicePeak | None = None
    memory: MemoryUse = NO_MEMORY
    device_uuids: tuple[str, ...] = ()

    @property
    def drafter(self) -> str:
        """The name of the drafter; "none" if speculation is off."""
        return self.drafters[0] if self.drafters else "none"


class UpdateReader(Protocol):
    """Reads the updates of one request, for their receiver: the engine writes tokens and text alone."""

    @property
    def is_over(self) -> bool:
        """Whether the engine has ended the request."""
        ...

    def read(self, update: Update) -> Sequence[Update]:
        """An update with what its text means: reasoning, calls, tags, JSON. At the end, text that was held back comes first.

        A fault ends the request with `Failed`. The receiver then cancels it, and its further updates are dropped.
        """
        ...


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request that an engine has accepted.

    Attributes:
        prompt_token_ids: of its prompt.
        reader: reads its updates. One thread at a time uses it.
    """

    prompt_token_ids: Sequence[int]
    reader: UpdateReader


class EngineClient(Protocol):
    """A running engine. All methods are thread-safe, and none waits for the model.

    Attributes:
        info: the model and the engine's limits.
        tokenizer: the model's tokenizer.
        compiler: compiles constraints; None if the engine enforces none.
        journal: the contents of the prefix cache.
        stopped: done when the engine has ended. The result is None after a close, or the fault that ended the engine.
    """

    info: EngineInfo
    tokenizer: Tokenizer
    compiler: ConstraintCompiler | None
    journal: CacheJournal
    stopped: Future[EngineStoppedError | None]

    def submit(self, request_id: str, request: GenerateRequest, sink: Sink) -> Submitted:
        """Queue a request. Tokenizing its prompt and compiling its constraint block the calling thread.

        The request ends with ``n`` `Finished`, one for each output, or with one `Failed`.

        Args:
            request_id: unique among the requests in flight.
            request: the request.
            sink: receives the request's updates, as the engine writes them: its receiver reads them with the result's reader.

        Raises:
            InvalidRequestError: the request is invalid. It lists every field that is wrong.
            DuplicateRequestError: ``request_id`` is running already.
            QueueFullError: too many requests wait.
            EngineStoppedError: the engine is stopping or has stopped.
        """
        ...

    def cancel(self, request_id: str) -> bool:
        """End a request: it finishes with CANCELLED within a step. Cancelling twice is harmless.

        Returns:
            Whether the request was running.
        """
        ...

    def stats(self) -> EngineStats:
        """The engine's current state."""
        ...

    def stats_by_replica(self) -> Sequence[EngineStats]:
        """The current state of each engine that shares the requests."""
        return (self.stats(),)

    def replicas_running(self) -> Sequence[bool]:
        """Which of them have not ended."""
        return (not self.stopped.done(),)

    def flush_prefix_cache(self) -> Future[int]:
        """Free the cache blocks that no sequence holds.

        Returns:
            How many blocks were freed.
        """
        ...

    def start_profile(self) -> Future[None]:
        """Start profiling the steps.

        Returns:
            A future that is done when the profiler runs. It raises `ProfilerError` if it was running already.
        """
        ...

    def stop_profile(self, path: Path) -> Future[None]:
        """Stop profiling, and write the trace to the file ``path``."""
        ...


_A_MESSAGE = "{'role': …, 'content': …}"


def kind_of(value: object) -> str:
    """A value's type in an error: ``None``, or its name with an article."""
    if value is None:
        return "None"
    name = type(value).__name__
    if name == "bytes":
        return name
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _message(path: str, message: object) -> tuple[str, str]:
    if isinstance(message, Mapping):
        role, content = message.get("role"), message.get("content")
        if content is None and message.get("tool_calls"):
            content = ""
        more = set(message) - {"role", "content", *_DETAILS.get(role, ())}
        if more or "role" not in message or ("content" not in message and content is None):
            problem = f"needs exactly 'role' and 'content', has {sorted(map(str, message))}"
            raise InvalidRequestError(FieldViolation(path, problem))
    elif isinstance(message, tuple) and len(message) == 2:
        role, content = message
    else:
        raise InvalidRequestError(FieldViolation(path, f"must be {_A_MESSAGE}, not {kind_of(message)}"))
    if isinstance(content, list):
        content = "\n".join(_part(f"{path}.content[{index}]", part) for index, part in enumerate(content))
    for name, part in (("role", role), ("content", content)):
        if not isinstance(part, str):
            raise InvalidRequestError(FieldViolation(f"{path}.{name}", f"must be text, not {kind_of(part)}"))
        check_unicode(f"{path}.{name}", part)
    return str(role), str(content)


def _part(path: str, part: object) -> str:
    """The text of a part of a message's content."""
    match part:
        case {"type": "text", "text": str(text), **others} if not others:
            return text
    raise InvalidRequestError(FieldViolation(path, "must be {'type': 'text', 'text': …}: the model reads text"))


_DETAILS: dict[Any, tuple[str, ...]] = {
    "assistant": ("tool_calls", "reasoning", "reasoning_content"),
    "tool": ("tool_call_id", "name"),
}
"""The further members of messages, by role."""


def _details(path: str, message: Mapping[str, Any]) -> MessageDetails:
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    call_id = message.get("tool_call_id") or ""
    for name, text in (("reasoning", reasoning), ("tool_call_id", call_id)):
        if not isinstance(text, str):
            raise InvalidRequestError(FieldViolation(f"{path}.{name}", f"must be text, not {kind_of(text)}"))
        check_unicode(f"{path}.{name}", text)
    return MessageDetails(as_tool_calls(message.get("tool_calls") or (), f"{path}.tool_calls"), call_id, reasoning)


def check_unicode(field: str, text: str) -> None:
    """Reject surrogate code points, which no Unicode text has: neither tokenizers nor messages can take them.

    Raises:
        InvalidRequestError: the text has one.
    """
    if (problem := no_unicode(text)) is not None:
        raise InvalidRequestError(FieldViolation(field, problem))
