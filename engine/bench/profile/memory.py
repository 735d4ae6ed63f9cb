"""``memory_by_batch``: what weights, cache, activations and graphs take, by batch size until the cache is full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from draftline.engine.bench.profile.steps import BatchRunner
from draftline.engine.core import Core
from draftline.engine.errors import UsageError


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """The memory that a batch takes at most, in bytes.

    Attributes:
        rows: sequences that were queued at once.
        running: of these, the most that ran at once.
        preemptions: how often one had to give its blocks back; beyond the boundary, sequences wait or are preempted.
        weights: of the model and the draft model.
        cache: the blocks that sequences held.
        activations: the most that a step took besides, outside of graphs, in this batch or a smaller one.
        graphs: of all CUDA graphs.
        cache_free: the rest of the cache that the engine has reserved.
    """

    rows: int
    running: int
    preemptions: int
    weights: int
    cache: int
    activations: int
    graphs: int
    cache_free: int

    @property
    def total(self) -> int:
        """All but the free cache."""
        return self.weights + self.cache + self.activations + self.graphs

    def fields(self) -> dict[str, Any]:
        """The fields of a result."""
        return {**asdict(self), "total": self.total}


def boundary(runner: BatchRunner, prompt_len: int) -> int:
    """The most sequences of such prompts and their few outputs that the cache has room for at once."""
    info = runner.core.info
    cached = prompt_len + _output_len(runner) - 1  # the last token is never cached
    return info.cache_blocks // -(-cached // info.block_size)


def _output_len(runner: BatchRunner) -> int:
    """Long enough that the first sequences still decode when the last ones have begun."""
    return _OUTPUTS * (1 + runner.max_drafts)


def batch_sizes(limit: int, most: int, wanted: Sequence[int] | None = None) -> list[int]:
    """The ``wanted`` sizes up to ``limit``, that itself, and one sequence more; at most ``most``, the running ones.

    Where None are wanted, they are the powers of two.
    """
    sizes = [1 << power for power in range(limit.bit_length())] if wanted is None else sorted(set(wanted))
    return [size for size in [*(size for size in sizes if size < limit), limit, limit + 1] if 0 < size <= most]


def memory_by_batch(runner: BatchRunner, prompt_len: int, rows: Sequence[int] | None = None) -> Iterator[BatchMemory]:
    """Run batches of growing size, up to one sequence more than the cache holds, or to max_num_seqs.

    Prompts have ``prompt_len`` tokens. They are computed first, and stay in the prefix cache. So all sequences of a
    batch then decode at once, though computing the prompts of a large batch takes much longer than decoding a few
    tokens. A sequence beyond the boundary waits, or is preempted: the engine does not run out of memory. ``rows`` are
    the sizes below the boundary; powers of two where None.

    Raises:
        UsageError: the prompt is too long, or the engine has no prefix cache.
    """
    if not runner.caches_prefixes:
        raise UsageError("--no-prefix-caching: --memory needs the prefix cache to fill all of the cache")
    runner.check(1, prompt_len, _output_len(runner))
    room, activations = boundary(runner, prompt_len), 0
    for size in batch_sizes(room, runner.core.info.max_num_seqs, rows):
        measured = _measured(runner, size, room, prompt_len)
        # Half of a batch may be known from a smaller one, which took as much.
        activations = max(activations, measured.activations)
        yield replace(measured, activations=activations)


def _measured(runner: BatchRunner, rows: int, room: int, prompt_len: int) -> BatchMemory:
    core, info = runner.core, runner.core.info
    device = torch.device(info.device)
    preempted = core.stats().preemptions
    meter = _OnGpu(device) if device.type == "cuda" else _OnCpu()
    with meter.measuring():
        # No more prompts than there is room for: another would evict what the first ones need.
        with runner.batch(min(rows, room), prompt_len, 1, serial=_SERIAL):
            _run(core)
        with runner.batch(rows, prompt_len, _output_len(runner), serial=_SERIAL):
            running, held = _run(core)
    block = info.memory.cache // info.cache_blocks
    return BatchMemory(
        rows=rows,
        running=running,
        preemptions=core.stats().preemptions - preempted,
        weights=info.memory.weights,
        cache=held * block,
        activations=meter.peak(),
        graphs=info.memory.graphs,
        cache_free=info.memory.cache - held * block,
    )


def _run(core: Core) -> tuple[int, int]:
    """Step until all sequences have ended.

    Returns the most that ran at once, and the most blocks that sequences held.
    """
    running = held = 0
    for _ in range(_MAX_STEPS):
        if not core.has_work:
            break
        core.step()
        stats = core.stats()
        running = max(running, stats.running)
        held = max(held, stats.total_blocks - stats.free_blocks - stats.cached_blocks)
    return running, held


_OUTPUTS = 16
_SERIAL = 0
"""Of the prompts: every batch has those of the smaller ones, and more."""

_MAX_STEPS = 100_000


class _OnGpu:
    """The allocator's own peak."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)
        self._before = torch.cuda.memory_allocated(device)

    def measuring(self) -> AbstractContextManager[object]:
        return nullcontext()

    def peak(self) -> int:
        return max(0, torch.cuda.max_memory_allocated(self._device) - self._before)


class _OnCpu:
    """The peak of the allocations that torch's profiler sees."""

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def measuring(self) -> AbstractContextManager[object]:
        return self._profile

    def peak(self) -> int:
        now = most = 0
        events: Any = self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        for event in events:
            if event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now)
        return most
