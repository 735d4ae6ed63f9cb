"""``EngineRequest``: a validated request in plain values, which one process can send to another."""

from __future__ import annotations

from dataclasses import dataclass

from draftline.engine.params import Constraint, SamplingParams


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request that was tokenized, and validated against one engine's model and limits.

    It has no value that belongs to one process. `Request` adds those: sequences, compiled constraint, sink and times.

    Attributes:
        request_id: unique among the running requests.
        prompt_token_ids: the prompt's tokens, at least one.
        sampling: the sampling parameters.
        seed: the seed of the first output. Each further output has the next one.
        max_len: the length at which an output must end: prompt plus ``max_tokens``.
        draft_tokens: drafts per step that the request asks for; None for the server's choice, 0 without a drafter.
        constraint: the constraint, which compiles; None without one.
        head_start_s: the head start in the queue that the priority buys, in seconds.
        timeout_s: seconds from its submission until it times out; None without a timeout.
        caller: whose request it is.
        weight: the caller's share, relative to other callers.
        constraint_compile_s: seconds that it has waited for its constraint to compile.
        bad_words: the token ids of each spelling of its bad words.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    max_len: int
    draft_tokens: int | None
    constraint: Constraint | None
    head_start_s: float
    timeout_s: float | None
    caller: str
    weight: float
    constraint_compile_s: float
    bad_words: tuple[tuple[int, ...], ...]
