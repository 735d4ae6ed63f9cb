"""A deterministic `EngineClient` without a model: every output repeats its prompt's tokens, one token a step.

It has a real step thread and the engine's own validation of requests, so that a test against it tests the faces alone.
Constraints compile, but outputs ignore them. A test can hold the thread and let it make single steps. Prompts in
capitals cause faults: ``FAIL`` fails in its second step, as in a faulty step; ``DIE`` ends the whole engine; ``CRASH``
makes submit() raise an unexpected error.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import cast

from byte_compilers import byte_compiler
from fake_tokenizer import EOS, ByteTokenizer
from patience import PATIENCE_S

from draftline.engine.cache_journal import CacheJournal
from draftline.engine.errors import DuplicateRequestError, EngineStoppedError, QueueFullError, StepFailedError
from draftline.engine.outputs import (
    Delta,
    Failed,
    Finished,
    FinishReason,
    PositionLogprobs,
    SpeculationStats,
    Timing,
    TokenLogprob,
    Update,
    Usage,
)
from draftline.engine.protocol import EngineClient, EngineInfo, GenerateRequest, Prompt, Sink, Submitted
from draftline.engine.request.request import Request, RequestBuilder
from draftline.engine.stats import EngineStats
from draftline.models.config import ModelConfig
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.structured.compiler import ConstraintCompiler

VOCAB = 256
MAX_MODEL_LEN = 4096


def fake_info() -> EngineInfo:
    """The info of a tiny model of bytes."""
    config = ModelConfig(
        family="fake",
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=16,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        max_positions=MAX_MODEL_LEN,
        norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        sliding_windows=(None, None),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tied_embeddings=True,
        bos_token_id=None,
        eos_token_ids=(EOS,),
    )
    return EngineInfo(
        model="fake",
        config=config,
        eos_token_ids=(EOS,),
        quantization="none",
        dtype="float32",
        device="cpu",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=64,
        cache_blocks=1024,
        block_size=16,
        drafters=(),
        constraint_kinds=(),
        system_fingerprint="fp_fake",
        has_chat_template=True,
        max_token_bytes=1,
    )


@dataclass(slots=True)
class _Live:
    prompt: Prompt
    request: Request
    cancelled: bool = False
    made: dict[int, int] = field(default_factory=dict)


class FakeEngine(EngineClient):
    """An engine of byte tokens."""

    def __init__(self, *, step_s: float = 0.0, max_waiting: int = 1024) -> None:
        """``step_s`` is the minimum time of a step in seconds; ``max_waiting`` the maximum requests at once."""
        self.info = fake_info()
        self.tokenizer = cast(Tokenizer, ByteTokenizer())
        self.compiler = byte_compiler()
        self.journal = CacheJournal()
        self.stopped: Future[EngineStoppedError | None] = Future()
        self.steps = 0
        self.cancelled: list[str] = []
        self._builder = RequestBuilder(self.info, self.tokenizer, 5.0, self.compiler)
        self._step_s = step_s
        self._max_waiting = max_waiting
        self._retry_after_s = 1.5
        self._live: dict[str, _Live] = {}
        self._allowed: float = float("inf")
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="fake-step", daemon=True)
        self._thread.start()

    def compile_with(self, compiler: ConstraintCompiler) -> None:
        """Compile constraints with another compiler from now on."""
        self.compiler = compiler
        self._builder = RequestBuilder(self.info, self.tokenizer, 5.0, compiler)

    def submit(self, request_id: str, request: GenerateRequest, sink: Sink) -> Submitted:
        if request.prompt == "CRASH":
            raise RuntimeError("a secret of the server")
        prepared = self._builder.prepare(request_id, request)
        built = prepared.begin(sink, time.monotonic())
        with self._changed:
            if self._stopping:
                raise EngineStoppedError("the engine is stopping and takes no new requests")
            if request_id in self._live:
                raise DuplicateRequestError(f"a request with id {request_id!r} is running")
            if len(self._live) >= self._max_waiting:
                raise QueueFullError(f"{len(self._live)} requests are waiting, which is the limit", self._retry_after_s)
            self._live[request_id] = _Live(request.prompt, built, made=dict.fromkeys(range(request.sampling.n), 0))
            self._changed.notify_all()
        return Submitted(built.prompt_token_ids, prepared.reader)

    def cancel(self, request_id: str) -> bool:
        with self._changed:
            if request_id not in self._live:
                return False
            self.cancelled.append(request_id)
            self._live[request_id].cancelled = True
            self._changed.notify_all()
            return True

    def stats(self) -> EngineStats:
        """Counts of requests; the rest is zero."""
        return EngineStats(len(self._live), 0, 0, 0, 0, self.steps, 0, 0, 0, 0)

    def replicas_with_work(self) -> Sequence[bool]:
        """Whether there are requests."""
        return (bool(self._live),)

    def close(self) -> None:
        """Stop, and fail the running requests."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def hold(self) -> None:
        """Make only those steps that `step` allows."""
        with self._changed:
            self._allowed = 0

    def step(self, count: int = 1) -> None:
        """Let a held engine make ``count`` steps, and wait for them. There must be requests."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._allowed == 0, timeout=PATIENCE_S), (
                "the fake engine has nothing to do"
            )

    def pace(self, step_s: float) -> None:
        """Set the minimum time of a step in seconds, so that a long request lasts for as long as a test needs it."""
        self._step_s = step_s

    def release(self) -> None:
        """Let a held engine run freely."""
        with self._changed:
            self._allowed = float("inf")
            self._changed.notify_all()

    def wait_idle(self) -> None:
        """Wait until no request is running."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._live, timeout=PATIENCE_S), (
                f"still running: {list(self._live)}"
            )

    def wait_running(self, count: int) -> None:
        """Wait until ``count`` requests are running."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._live) == count, timeout=PATIENCE_S), (
                f"running: {list(self._live)}"
            )

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or (self._live and self._allowed > 0))
                if self._stopping or any(live.prompt == "DIE" for live in self._live.values()):
                    break
                self._make_step()
                self._allowed -= 1
                self._changed.notify_all()
            if self._step_s:
                time.sleep(self._step_s)
        with self._changed:
            closed = self._stopping
            self._stopping = True
        stopped = EngineStoppedError("the engine stopped before the request was finished")
        for request_id, live in self._live.items():
            live.request.sink([(request_id, Failed(stopped))])
        self.stopped.set_result(None if closed else EngineStoppedError("the engine stopped after a fault: DIE"))

    def _make_step(self) -> None:
        self.steps += 1
        by_sink: dict[Sink, list[tuple[str, Update]]] = defaultdict(list)
        for request_id, live in list(self._live.items()):
            updates = _advance(live)
            by_sink[live.request.sink].extend((request_id, update) for update in updates)
            if not live.made:
                del self._live[request_id]
        for sink, pairs in by_sink.items():
            sink(pairs)


def _advance(live: _Live) -> list[Update]:
    """The updates of a request in one step. Outputs that end are removed from ``live.made``."""
    updates: list[Update] = []
    for index, made in list(live.made.items()):
        sequence = live.request.sequences[index]
        if live.cancelled:
            updates.append(_finished(live, index, FinishReason.CANCELLED))
            continue
        if live.prompt == "FAIL" and made == 1:
            live.made.clear()
            return [Failed(StepFailedError("a step of the engine failed: a secret of the server"))]
        token = sequence.tokens[made % sequence.prompt_len]
        updates.append(
            Delta(index, (token,), chr(token) if token < 128 else "?", _logprobs(live, token), _prompt(live, made))
        )
        live.made[index] = made + 1
        if sequence.prompt_len + made + 1 == sequence.max_len:
            updates.append(_finished(live, index, FinishReason.LENGTH))
    return updates


def _logprobs(live: _Live, token: int) -> tuple[PositionLogprobs, ...]:
    count = live.request.sequences[0].sampling.logprobs
    return () if count is None else (_position(token, count),)


def _prompt(live: _Live, made: int) -> tuple[PositionLogprobs, ...]:
    count = live.request.sequences[0].sampling.prompt_logprobs
    if count is None or made:
        return ()
    return tuple(_position(token, count) for token in live.request.prompt_token_ids[1:])


@functools.cache
def _position(token: int, count: int) -> PositionLogprobs:
    top = tuple(TokenLogprob((token + rank) % VOCAB, 0.0 - 0.5 * rank, rank + 1) for rank in range(count))
    return PositionLogprobs(TokenLogprob(token, 0.0, 1), top)


def _finished(live: _Live, index: int, reason: FinishReason) -> Finished:
    completion = live.made.pop(index)
    sequence = live.request.sequences[index]
    return Finished(
        index=index,
        finish_reason=reason,
        matched_stop="",
        usage=Usage(sequence.prompt_len, 0, completion),
        speculation=SpeculationStats(),
        timing=Timing(0.001, 0.002, 0.003, 0.004),
        constraint_complete=None,
        seed=sequence.seed,
        system_fingerprint="fp_fake",
    )
