"""The layout of an inbox: memory of one rank that its peers write to.

For each program and sender there is a flag; two cells of words, each of which tells its own arrival (`words.py`); and two cells of
raw elements, whose arrival the flag tells. A program uses the two cells in turn, by the parity of its count of
exchanges, so that a sender never writes what is still being read.
"""

from __future__ import annotations

import triton
import triton.language as tl

PROGRAMS = 256
"""The most programs of an exchange, on the largest devices."""

_SENT_BYTES = 65536
"""The most bytes of the cells of all senders of a program's exchange."""

_COPIED_BYTES = 16
"""Bytes that a thread copies at once."""

WORDS = 1024
"""Words of a cell."""

_FLAG_BYTES = 128
"""Bytes between two flags: no two share a cache line."""

_WORD_BYTES = 8

_FLAGS = tl.constexpr(_FLAG_BYTES)
_PROGRAMS = tl.constexpr(PROGRAMS)
_WORDS = tl.constexpr(WORDS)
_WORD = tl.constexpr(_WORD_BYTES)
_COPIED = tl.constexpr(_COPIED_BYTES)


def cell_bytes(size: int) -> int:
    """The size of a cell with ``size`` ranks: the larger it is, the fewer exchanges a long message takes."""
    return _SENT_BYTES // size // _COPIED_BYTES * _COPIED_BYTES


def inbox_bytes(size: int) -> int:
    """The size of an inbox for messages from ``size`` ranks."""
    return PROGRAMS * size * (_FLAG_BYTES + 2 * cell_bytes(size) + 2 * WORDS * _WORD_BYTES)


_cell_bytes = triton.constexpr_function(cell_bytes)


@triton.jit
def flag_of(inbox: tl.tensor, program: tl.tensor, sender: tl.constexpr, SIZE: tl.constexpr) -> tl.tensor:
    """The address of a sender's flag for a program."""
    return (inbox + (program * SIZE + sender) * _FLAGS).to(tl.pointer_type(tl.int32))


@triton.jit
def _index(program: tl.tensor, sender: tl.constexpr, count: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """The number of a sender's cell for a program's exchange."""
    return (((count & 1) * _PROGRAMS + program) * SIZE + sender).to(tl.int64)


@triton.jit
def cell_of(
    inbox: tl.tensor,
    program: tl.tensor,
    sender: tl.constexpr,
    count: tl.tensor,
    SIZE: tl.constexpr,
    dtype: tl.constexpr,
) -> tl.tensor:
    """The address of a sender's elements for a program's exchange."""
    cells = inbox + _PROGRAMS * SIZE * (_FLAGS + 2 * _WORDS * _WORD)
    cell = cells + _index(program, sender, count, SIZE) * _cell_bytes(SIZE)
    return tl.multiple_of(cell.to(tl.pointer_type(dtype)), _COPIED)


@triton.jit
def words_of(
    inbox: tl.tensor, program: tl.tensor, sender: tl.constexpr, count: tl.tensor, SIZE: tl.constexpr
) -> tl.tensor:
    """The address of a sender's words for a program's exchange."""
    words = (inbox + _PROGRAMS * SIZE * _FLAGS).to(tl.pointer_type(tl.int64))
    return words + _index(program, sender, count, SIZE) * _WORDS
