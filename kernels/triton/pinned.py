"""A graph's own copies from and to pinned host memory.

A device reads and writes pinned memory itself. So a graph can take its inputs and hand over its results, and the host calls no
driver for either: it writes the inputs before it launches the graph, and reads the results once the graph has ended. A graph always
reads the same addresses, while the host writes one launch's inputs before the device has taken those of the last. So there are
several stages, used in turn. The device counts the turns, as it alone knows which launch it is at.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.clock import nanoseconds

_BLOCK = 1024

_FEW = 128
"""Writes that are read together with their number: another trip to the host's memory would take a microsecond."""


@triton.jit(do_not_specialize=["words", "turns"])
def _receive_kernel(
    stages: tl.tensor, turn: tl.tensor, out: tl.tensor, words: int, turns: int, BLOCK: tl.constexpr
) -> None:
    """One program: a message is a few kilobytes, and the turn must not change before all of it is read."""
    own = tl.load(turn)
    stage = stages + own.to(tl.int64) * words
    for base in range(0, words, BLOCK):
        at = base + tl.arange(0, BLOCK)
        # The host has written it since an earlier launch read it: take nothing from a cache.
        tl.store(out + at, tl.load(stage + at, mask=at < words, volatile=True), mask=at < words)
    tl.debug_barrier()  # all threads have read the turn
    tl.store(turn, (own + 1) % turns)


@triton.jit
def _write_some(
    base: tl.tensor,
    count: tl.tensor,
    places: tl.tensor,
    values: tl.tensor,
    size: tl.tensor,
    out: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = base + tl.arange(0, BLOCK)
    place = tl.load(places + at, mask=at < size, volatile=True)
    value = tl.load(values + at, mask=at < size, volatile=True)
    tl.store(out + place, value, mask=at < count)


@triton.jit(do_not_specialize=["words", "size", "turns"])
def _receive_writes_kernel(
    stages: tl.tensor,
    turn: tl.tensor,
    out: tl.tensor,
    words: int,
    size: int,
    turns: int,
    FEW: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program, as in `_receive_kernel`. The first `FEW` writes are read before their number is known."""
    own = tl.load(turn)
    stage = stages + own.to(tl.int64) * words
    places = stage + 1
    values = (places + size).to(tl.pointer_type(tl.int32))
    count = tl.load(stage, volatile=True).to(tl.int32)
    _write_some(0, count, places, values, size, out, FEW)
    for base in range(FEW, count, BLOCK):
        _write_some(base, count, places, values, size, out, BLOCK)
    tl.debug_barrier()  # all threads have read the turn
    tl.store(turn, (own + 1) % turns)


@triton.jit(do_not_specialize=["words", "turns"])
def _receive_with_writes_kernel(
    stages: tl.tensor,
    turn: tl.tensor,
    out: tl.tensor,
    written: tl.tensor,
    words: int,
    turns: int,
    WRITES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program, as the two others. All is asked for at once: a trip to the host's memory takes a microsecond."""
    own = tl.load(turn)
    stage = stages + own.to(tl.int64) * (words + 1 + WRITES + WRITES // 2)
    places = stage + words + 1
    at = tl.arange(0, WRITES)
    count = tl.load(stage + words, volatile=True).to(tl.int32)
    place = tl.load(places + at, volatile=True)
    value = tl.load((places + WRITES).to(tl.pointer_type(tl.int32)) + at, volatile=True)
    for base in range(0, words, BLOCK):
        index = base + tl.arange(0, BLOCK)
        tl.store(out + index, tl.load(stage + index, mask=index < words, volatile=True), mask=index < words)
    tl.store(written + place, value, mask=at < count)
    tl.debug_barrier()  # all threads have read the turn
    tl.store(turn, (own + 1) % turns)


@triton.jit(do_not_specialize=["samples", "rows", "words", "most_samples", "most_rows", "turns"])
def _deliver_kernel(
    tokens: tl.tensor,
    accepted: tl.tensor,
    moments: tl.tensor,
    stages: tl.tensor,
    turn: tl.tensor,
    samples: int,
    rows: int,
    words: int,
    most_samples: int,
    most_rows: int,
    turns: int,
    EARLIER: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    own = tl.load(turn)
    stage = stages + own.to(tl.int64) * words
    noted = stage + most_samples + most_rows
    for index in tl.static_range(EARLIER):
        tl.store(noted + index, tl.load(moments + index))
    tl.store(noted + EARLIER, nanoseconds())
    for base in range(0, samples, BLOCK):
        at = base + tl.arange(0, BLOCK)
        tl.store(stage + at, tl.load(tokens + at, mask=at < samples), mask=at < samples)
    for base in range(0, rows, BLOCK):
        at = base + tl.arange(0, BLOCK)
        count = tl.load(accepted + at, mask=at < rows)
        tl.store(stage + most_samples + at, count.to(tl.int64), mask=at < rows)
    tl.debug_barrier()
    tl.store(turn, (own + 1) % turns)


def receive(stages: Tensor, turn: Tensor, out: Tensor) -> None:
    """Copy the stage whose turn it is to the device, and pass the turn on.

    Args:
        stages: [N, W] int64, pinned.
        turn: [1] int32 on the device, below N.
        out: [W] int64 on the device.
    """
    turns, words = stages.shape
    _receive_kernel[(1,)](stages, turn, out, words, turns, BLOCK=_BLOCK)


def receive_writes(stages: Tensor, turn: Tensor, out: Tensor) -> None:
    """Carry out the writes of the stage whose turn it is, and pass the turn on.

    A stage has their number, S places, and as pairs of int32 S values, of which so many count. No place comes up twice.

    Args:
        stages: [N, 1 + S + S / 2] int64, pinned, S even.
        turn: [1] int32 on the device, below N.
        out: int32 on the device, of any size.
    """
    turns, words = stages.shape
    size = (words - 1) // 3 * 2
    _receive_writes_kernel[(1,)](stages, turn, out, words, size, turns, FEW=_FEW, BLOCK=_BLOCK)


def receive_with_writes(stages: Tensor, turn: Tensor, out: Tensor, written: Tensor) -> None:
    """`receive`, and carry out the writes behind the words that are received, as `receive_writes` does.

    Args:
        stages: [N, W + 1 + S + S / 2] int64, pinned, S a power of two.
        turn: [1] int32 on the device, below N.
        out: [W] int64 on the device.
        written: int32 on the device, of any size: where the writes go.
    """
    turns, (words,) = len(stages), out.shape
    writes = (stages.shape[1] - words - 1) // 3 * 2
    _receive_with_writes_kernel[(1,)](stages, turn, out, written, words, turns, WRITES=writes, BLOCK=_BLOCK)


def deliver(tokens: Tensor, accepted: Tensor, moments: Tensor, stages: Tensor, turn: Tensor, most_samples: int) -> None:
    """Copy a step's results to the stage whose turn it is, and pass the turn on.

    Args:
        tokens: [S] int64, the samples.
        accepted: [R] int32, how many of its samples each row keeps.
        moments: [M] int64, of which the last is now.
        stages: [N, W] int64, pinned. A stage has the tokens first, the rows' counts from ``most_samples`` on, and the
            moments at its end.
        turn: [1] int32 on the device, below N.
        most_samples: the most samples of any step, at least S.
    """
    turns, words = stages.shape
    most_rows = words - most_samples - len(moments)
    _deliver_kernel[(1,)](
        tokens,
        accepted,
        moments,
        stages,
        turn,
        len(tokens),
        len(accepted),
        words,
        most_samples,
        most_rows,
        turns,
        EARLIER=len(moments) - 1,
        BLOCK=_BLOCK,
    )
