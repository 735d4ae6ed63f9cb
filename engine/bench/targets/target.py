"""``Target``: something that answers requests and is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.load.history import Form
from draftline.engine.protocol import Prompt
from draftline.engine.stats import DevicePeak, WorkCounts


@dataclass(frozen=True, slots=True)
class Question:
    """A request.

    Attributes:
        prompt: token ids, a text, or a chat.
        max_tokens: the most tokens of its answer.
        ignore_eos: whether the answer goes on after end-of-sequence, to ``max_tokens``.
        temperature: 0 is greedy.
        seed: of its draws.
    """

    prompt: Prompt
    max_tokens: int
    ignore_eos: bool
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What a target says about itself; empty or None where it does not.

    Attributes:
        protocol: ``grpc``, ``http``, or ``offline``.
        engine: the name of its software.
        version: its version.
        model: the model.
        device: its device.
        dtype: the dtype of activations.
        vocab_size: token ids are below this.
        max_model_len: tokens of prompt and output together.
        form: the form of prompts if the user chooses none.
        details: further facts, such as options or the fingerprint.
    """

    protocol: str
    engine: str
    version: str | None
    model: str
    device: str | None
    dtype: str | None
    vocab_size: int
    max_model_len: int | None
    form: Form
    details: Mapping[str, object] = field(default_factory=dict)


class RequestError(Exception):
    """A request failed. ``code`` names the reason: a gRPC code, an HTTP status, ``CONNECTION`` or ``PROTOCOL``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Target(Protocol):
    """A server or an engine, open for requests.

    Attributes:
        info: what it says about itself.
    """

    info: TargetInfo

    async def ask(self, question: Question, answer: Answer) -> None:
        """Send a request, and write what comes back into ``answer``, with its times.

        Raises:
            RequestError: it failed.
        """
        ...

    async def ready(self) -> None:
        """Wait until its engine compiles no kernels beside its steps any more, where it says whether it does."""

    async def work(self) -> WorkCounts | None:
        """Ask for the work of its engine's steps so far; None where it does not say."""
        return None

    def peak(self) -> DevicePeak | None:
        """The peak rates of its device, once `work` has been asked for; None where they are not known."""
        return None

    async def close(self) -> None:
        """Disconnect, or stop the engine. Idempotent."""
        ...
