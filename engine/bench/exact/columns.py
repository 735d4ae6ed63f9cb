"""``Column``: one way in which an engine may compute an answer that must not change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import get_args

from draftline.engine.bench.exact.answers import Count, EngineAnswers, answer, answer_in_fresh_process
from draftline.engine.config import DrafterName, EngineConfig
from draftline.engine.protocol import GenerateRequest

REFUSED_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("drafter", "draft_length", "draft_tokens", "ngram_entries", "prefix_caching"),
        "each of the --columns has its own",
    ),
    "synthetic_acceptance": "changes answers on purpose",
    "gpu_memory_utilization": "all engines have a cache of the same size: use kv_cache_memory_gib",
}
"""Options of the engine that the comparison does not take, with the reason."""

_WEIGHTLESS = tuple(name for name in get_args(DrafterName) if name not in ("auto", "none", "forced", "draft_model"))
"""The drafters that have no weights and draft for any request."""

SMALL_CHUNK = 48
"""Tokens of a step whose prompts are to be computed in many pieces."""

Asking = Callable[[EngineConfig, Sequence[Sequence[GenerateRequest]], Sequence[int], Count], EngineAnswers]


@dataclass(frozen=True, slots=True)
class Column:
    """One way to ask.

    Attributes:
        name: as in the table, and for --columns.
        options: of the engine, besides those that all columns have.
        concurrencies: how many requests run at once. All suites are asked once for each, and the last answers count.
        count: counts what makes the column different. Where it stays 0, the column has shown nothing.
        counted: the name of the count.
        ask: where the engine runs.
        suites: the suites that are asked; None for all.
        scarce_cache: whether the cache is too small for all requests, which the reference's answers decide: see
            `scarce`.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    concurrencies: tuple[int, ...] = (8,)
    count: Count = attrgetter("steps")
    counted: str = "steps"
    ask: Asking = answer
    suites: tuple[str, ...] | None = None
    scarce_cache: bool = False


ALONE = Column("alone", {"prefix_caching": False}, (1,))
"""The reference: an engine that has seen nothing else, one request at a time, without prefix cache and drafts."""


def columns(
    only: Sequence[str], *, max_batched_tokens: int | None, on_gpu: bool, draft: Mapping[str, object]
) -> list[Column]:
    """The columns besides the reference.

    Args:
        only: the names of those to return; empty for all.
        max_batched_tokens: the most tokens of a step in every column; None for the device's own number.
        on_gpu: whether the engines run on a GPU.
        draft: the options of the draft model. Without ``draft_model`` there is no column with one.

    Raises:
        ValueError: there is no column of a name.
    """
    plain = {"prefix_caching": False}
    small = min(SMALL_CHUNK, max_batched_tokens or SMALL_CHUNK)
    fixed = {"draft_length": "fixed", "draft_tokens": 4}
    found = [
        Column("again", {}, (64, 1), attrgetter("prefix_hit_tokens"), "prefix hit tokens"),
        Column("batches of 8", plain, (8,)),
        Column("batches of 64", plain, (64,)),
        Column("small chunks", plain | {"max_batched_tokens": small}, (8,)),
        Column("preempted", {}, (64,), attrgetter("preemptions"), "preemptions", scarce_cache=True),
        *(
            Column(name, fixed | {"drafter": name}, (8,), attrgetter("drafted_tokens"), "drafts")
            for name in _WEIGHTLESS
        ),
        Column("forced", {"drafter": "forced"}, (8,), attrgetter("drafted_tokens"), "drafts", suites=("constrained",)),
    ]
    if "draft_model" in draft:
        options = {**fixed, **draft, "drafter": "draft_model"}
        found.append(Column("draft_model", options, (8,), attrgetter("drafted_tokens"), "drafts"))
    if on_gpu:
        found.append(Column("eager", plain | {"enforce_eager": True}, (8,)))
    found.append(Column("fresh process", {}, (8,), ask=answer_in_fresh_process))
    names = [column.name for column in found]
    if unknown := [name for name in only if name not in names]:
        raise ValueError(f"--columns: {unknown[0]}: not one of {', '.join(names)}")
    return [column for column in found if not only or column.name in only]


def scarce(alone: EngineAnswers, cache_gib: float, max_tokens: int) -> dict[str, object]:
    """Options of a cache with room for the longest request, and for about a third of the first 64.

    Args:
        alone: the reference's answers.
        cache_gib: the size of its cache.
        max_tokens: the most tokens of an answer.
    """
    info = alone.info
    longest = max(max(suite.prompt_lens) for suite in alone.suites) + max_tokens + info.block_size
    held = max(sum(suite.prompt_lens[:64]) + sum(map(len, suite.answers[:64])) for suite in alone.suites)
    blocks = -(-max(longest, held // 3) // info.block_size)
    return {"kv_cache_memory_gib": cache_gib * (blocks + 0.5) / info.cache_blocks, "max_model_len": None}
