"""``EngineClient``: the interface of an engine for its faces (gRPC, AsyncEngine, CLI), wherever its step loop runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from draftline.engine.cache_journal import CacheJournal
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.outputs import Update
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.stats import EngineStats
from draftline.models.config import ModelConfig
from draftline.models.tokenization.rendering import AS_USUAL, Rendering

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from draftline.engine.errors import EngineStoppedError
    from draftline.models.tokenization.tokenizer import Tokenizer  # slow to import, and `--help` does not need it
    from draftline.structured.compiler import ConstraintCompiler


Message = Mapping[str, str]
"""A chat message: ``{"role": ..., "content": ...}``."""


@dataclass(frozen=True, slots=True, init=False)
class Chat:
    """Chat messages as (role, content) pairs. The model's chat template renders them, as ``rendering`` says."""

    messages: tuple[tuple[str, str], ...]
    rendering: Rendering

    def __init__(self, messages: Iterable[Message | tuple[str, str]], rendering: Rendering = AS_USUAL) -> None:
        """Make a chat of messages: ``{"role": ..., "content": ...}``, or (role, content) pairs.

        Raises:
            InvalidRequestError: something else is among them. The violation's field is its path, as in the proto.
        """
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
            problem = f"must be a list of {_A_MESSAGE} messages, not {kind_of(messages)}"
            raise InvalidRequestError(FieldViolation("chat.messages", problem))
        pairs = tuple(_message(f"chat.messages[{index}]", message) for index, message in enumerate(messages))
        object.__setattr__(self, "messages", pairs)
        object.__setattr__(self, "rendering", rendering)


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

    def submit(self, request_id: str, request: GenerateRequest, sink: Sink) -> Sequence[int]:
        """Queue a request. Tokenizing its prompt and compiling its constraint block the calling thread.

        The request ends with ``n`` `Finished`, one for each output, or with one `Failed`.

        Args:
            request_id: unique among the requests in flight.
            request: the request.
            sink: receives the request's updates.

        Returns:
            The prompt's token ids.

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
        if set(message) != {"role", "content"}:
            problem = f"needs exactly 'role' and 'content', has {sorted(map(str, message))}"
            raise InvalidRequestError(FieldViolation(path, problem))
        role, content = message["role"], message["content"]
    elif isinstance(message, tuple) and len(message) == 2:
        role, content = message
    else:
        raise InvalidRequestError(FieldViolation(path, f"must be {_A_MESSAGE}, not {kind_of(message)}"))
    for name, part in (("role", role), ("content", content)):
        if not isinstance(part, str):
            hint = ": content parts are not supported, join their texts" if isinstance(part, list) else ""
            problem = f"must be text, not {kind_of(part)}{hint}"
            raise InvalidRequestError(FieldViolation(f"{path}.{name}", problem))
        check_unicode(f"{path}.{name}", part)
    return role, content


def check_unicode(field: str, text: str) -> None:
    """Reject surrogate code points, which no Unicode text has: neither tokenizers nor messages can take them.

    Raises:
        InvalidRequestError: the text has one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"character {error.start} is a surrogate code point, which no Unicode text has"
        raise InvalidRequestError(FieldViolation(field, problem)) from None
