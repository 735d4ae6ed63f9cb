"""``SymmetricCollectives``: collectives between the GPUs of a host, one launch each, over their peers' memory.

Every rank has an inbox that its peers write to (`inbox.py`). A program sends its block of elements to each peer, then a flag
behind it, waits for the peers' flags, and computes its block from its inbox. The sums of few rows need no flag (`words.py`). Bits
depend neither on timing nor on the number of rows: the partials are added in the order of the ranks.

Program p of every rank works on the same elements, and has cells of its own in each inbox. It counts its exchanges, in memory,
so that a CUDA graph counts on; a cell's flag holds the count of what is in it. There are two cells for each sender, used in
turn: a peer writes an exchange's cell only after it has received all of the exchange before, and so after this rank has read
what was in the cell. No other synchronisation is needed.

A rank that waits for `_PATIENCE` rounds stops its GPU with an error. Far earlier, the watchdog has ended the process if a peer
has died.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup
from typing_extensions import override

from draftline.kernels.collectives import Collectives, Join
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.inbox import PROGRAMS, WORDS, cell_bytes, cell_of, flag_of, inbox_bytes
from draftline.kernels.triton.overlap import few_overlap, launch_options, wait_for_previous
from draftline.kernels.triton.sums import INTERPRETED
from draftline.kernels.triton.words import MAX_WORDS, WORD_ELEMENT_BYTES, word_spread_kernel, word_sum_kernel

_PROGRAMS_PER_SM = 2
"""Programs of an exchange on a multiprocessor: while one waits, the other sends. All run at once, so none waits for one that cannot start."""

_SM_REGISTERS = 65536

_THREADS = 512
"""The most threads of a program of which as many fit a multiprocessor."""

_PATIENCE = tl.constexpr(1 << 26)
"""Rounds of waiting, of about a microsecond each."""


@triton.jit
def _stop() -> None:
    """Stop the device with an error."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "trap; mov.b32 $0, 0;", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _exchange(
    value: tl.tensor,
    cols: tl.tensor,
    mask: tl.tensor,
    inboxes: tl.tensor,
    count: tl.tensor,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    dtype: tl.constexpr,
) -> None:
    """Send a block to every peer, and wait until theirs are in this rank's inbox."""
    program = tl.program_id(0)
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            cell = cell_of(tl.load(inboxes + peer), program, RANK, count, SIZE, dtype)
            tl.store(cell + cols, value, mask=mask)
    # The flag must not arrive before any thread's elements.
    tl.debug_barrier()
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            flag = flag_of(tl.load(inboxes + peer), program, RANK, SIZE)
            tl.atomic_xchg(flag, count, sem="release", scope="sys")
    own = tl.load(inboxes + RANK)
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            flag = flag_of(own, program, peer, SIZE)
            rounds = 0
            # The peer may be one exchange ahead. Counts wrap around, so that their difference decides.
            behind = count - tl.atomic_add(flag, 0, sem="acquire", scope="sys")
            while behind > 0:
                behind = count - tl.atomic_add(flag, 0, sem="acquire", scope="sys")
                rounds += 1
                if rounds > _PATIENCE:
                    _stop()
    tl.debug_barrier()


@triton.jit
def _received(
    inbox: tl.tensor,
    cols: tl.tensor,
    mask: tl.tensor,
    sender: tl.constexpr,
    count: tl.tensor,
    SIZE: tl.constexpr,
    dtype: tl.constexpr,
) -> tl.tensor:
    """A peer's block. Past the first cache, which does not see what peers write."""
    cell = cell_of(inbox, tl.program_id(0), sender, count, SIZE, dtype)
    return tl.load(cell + cols, mask=mask, other=0, cache_modifier=".cg")


@triton.jit
def _exchange_sum_kernel(
    partial: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    inboxes: tl.tensor,
    counts: tl.tensor,
    num_elements: int,
    N: int,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """A block may have many rows, or a part of one."""
    wait_for_previous(OVERLAP)
    program = tl.program_id(0)
    dtype: tl.constexpr = partial.dtype.element_ty
    count = tl.load(counts + program)
    own = tl.load(inboxes + RANK)
    cols = tl.arange(0, BLOCK)
    for item in range(program, tl.cdiv(num_elements, BLOCK), tl.num_programs(0)):
        count += 1
        at = item * BLOCK + cols
        mask = at < num_elements
        value = tl.load(partial + at, mask=mask, other=0.0)
        _exchange(value, cols, mask, inboxes, count, RANK, SIZE, dtype)
        total = tl.zeros([BLOCK], tl.float32)
        for rank in tl.static_range(SIZE):
            part = value if rank == RANK else _received(own, cols, mask, rank, count, SIZE, dtype)
            total = part.to(tl.float32) if rank == 0 else total + part.to(tl.float32)
        if BIAS:
            total += tl.load(bias + at % N, mask=mask, other=0.0).to(tl.float32)
        if ADD:
            total = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32) + total
        tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)
    tl.store(counts + program, count)


@triton.jit
def _exchange_columns_kernel(
    part: tl.tensor,
    starts: tl.tensor,
    out: tl.tensor,
    inboxes: tl.tensor,
    counts: tl.tensor,
    items: int,
    blocks: int,
    width: int,
    out_width: int,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    MULTIPLE: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """All of ``starts`` are multiples of MULTIPLE, so that a thread can copy several elements at once."""
    wait_for_previous(OVERLAP)
    program = tl.program_id(0)
    dtype: tl.constexpr = part.dtype.element_ty
    count = tl.load(counts + program)
    own = tl.load(inboxes + RANK)
    for item in range(program, items, tl.num_programs(0)):
        count += 1
        cols = tl.arange(0, BLOCK)
        n = item % blocks * BLOCK + cols
        row = tl.cast(item // blocks, tl.int64)
        mask = n < width
        value = tl.load(part + row * width + n, mask=mask, other=0)
        _exchange(value, cols, mask, inboxes, count, RANK, SIZE, dtype)
        for rank in tl.static_range(SIZE):
            start = tl.multiple_of(tl.load(starts + rank), MULTIPLE)
            theirs = n < tl.multiple_of(tl.load(starts + rank + 1), MULTIPLE) - start
            got = value if rank == RANK else _received(own, cols, theirs, rank, count, SIZE, dtype)
            tl.store(out + row * out_width + start + n, got, mask=theirs)
    tl.store(counts + program, count)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One rank's side of the exchanges.

    Attributes:
        inboxes: [size] int64, the addresses of all ranks' inboxes in this rank's memory.
        counts: [P] int32, how often each program has exchanged. P, the same on all ranks, is the most programs of an exchange.
        rank: this rank.
        size: the number of ranks.
        limits: the device's.
    """

    inboxes: Tensor
    counts: Tensor
    rank: int
    size: int
    limits: DeviceLimits

    def sum_add(self, partial: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        """[T, N] in ``partial``'s type: all ranks' partial sums, a bias [N] and a residual [T, N], added in float32 in rank order."""
        rows, n = partial.shape
        out = torch.empty_like(partial)
        if not rows:
            return out
        overlap = few_overlap(partial, self.limits)
        addends = partial, partial if bias is None else bias, partial if residual is None else residual
        tensors = *addends, out, self.inboxes, self.counts
        options = {
            "RANK": self.rank,
            "SIZE": self.size,
            "BIAS": bias is not None,
            "ADD": residual is not None,
            "OVERLAP": overlap,
            **launch_options(overlap),
        }
        words, left = divmod(n * partial.element_size(), WORD_ELEMENT_BYTES)
        block = None if left else self._block_of_words(rows, words)
        if block is not None:
            blocks = rows * triton.cdiv(words, block)
            word_sum_kernel[(blocks,)](*tensors, words, BLOCK=block, num_warps=block // 32, **options)
            return out
        elements = rows * n
        block = self._block(1, elements, partial)
        programs = min(triton.cdiv(elements, block), self._programs)
        _exchange_sum_kernel[(programs,)](*tensors, elements, n, BLOCK=block, **_size_options(block), **options)
        return out

    def join(self, part: Tensor, starts: Tensor, widths: Sequence[int]) -> Tensor:
        """[T, sum of widths]: all ranks' columns. ``starts`` [size + 1] int32 are the ranks' first columns, and their end."""
        rows = part.shape[0]
        out = part.new_empty((rows, sum(widths)))
        if not rows:
            return out
        block = self._block(rows, max(widths), part)
        blocks = triton.cdiv(max(widths), block)
        overlap = few_overlap(part, self.limits)
        _exchange_columns_kernel[(min(rows * blocks, self._programs),)](
            part,
            starts,
            out,
            self.inboxes,
            self.counts,
            rows * blocks,
            blocks,
            part.shape[1],
            out.shape[1],
            RANK=self.rank,
            SIZE=self.size,
            BLOCK=block,
            MULTIPLE=gcd(16, *widths),
            OVERLAP=overlap,
            **_size_options(block),
            **launch_options(overlap),
        )
        return out

    def spread(self, values: Tensor) -> Tensor:
        """[K] int64, each below 2^31: rank 0's values. ``K`` is at most ``P * WORDS``."""
        out = torch.empty_like(values)
        if values.shape[0]:
            word_spread_kernel[(triton.cdiv(values.shape[0], WORDS),)](
                values,
                out,
                self.inboxes,
                self.counts,
                values.shape[0],
                RANK=self.rank,
                SIZE=self.size,
                BLOCK=WORDS,
                num_warps=WORDS // 32,
                **launch_options(False),
            )
        return out

    @property
    def _programs(self) -> int:
        return self.counts.shape[0]

    def _block(self, rows: int, n: int, elements: Tensor) -> int:
        """Elements of a program's block: as few as leave each program one block, since a program sends and adds its block alone.

        Args:
            rows: rows that no block crosses.
            n: elements of a row.
            elements: of the type that is sent.
        """
        most = cell_bytes(self.size) // elements.element_size()
        block = 512
        while rows * triton.cdiv(n, block) > self._programs and block < n and 2 * block <= most:
            block *= 2
        return block

    def _block_of_words(self, rows: int, words: int) -> int | None:
        """Words of a program's block, one a thread, where a sum of so many words a row goes in words; None where it has flags."""
        if rows * words * (self.size - 1) > MAX_WORDS:
            return None
        for block in (256, 512, WORDS):
            most = self._programs * min(block, _THREADS) // block
            if rows * triton.cdiv(words, block) <= most:
                return block
        return None


def _size_options(block: int) -> dict[str, int]:
    """Eight elements a thread, or more in the largest blocks, and as many registers as leave room for another program."""
    threads = min(block // 8, _THREADS)
    return {"num_warps": threads // 32, "maxnreg": min(_SM_REGISTERS // (_PROGRAMS_PER_SM * threads), 255)}


class SymmetricCollectives(Collectives):
    """Collectives of one rank on its GPU, by peer memory that torch maps (without NVLink multicast)."""

    def __init__(self, group: ProcessGroup, host: Collectives, device: torch.device) -> None:
        """Map the ranks' inboxes. All ranks do so together.

        Args:
            group: of all ranks, with a name that no other group of this process has.
            host: collectives between the processes.
            device: this rank's.
        """
        # Imported here: it needs a build of torch with CUDA.
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        import torch.distributed._symmetric_memory as symmetric_memory
        from torch._C._distributed_c10d import _register_process_group, _SymmetricMemory

        self.rank, self.size = host.rank, host.size
        _register_process_group(group.group_name, group)  # by the name, torch finds the ranks and their store
        self._inbox = symmetric_memory.empty(inbox_bytes(self.size), dtype=torch.uint8, device=device)
        self._handle = _SymmetricMemory.rendezvous(self._inbox, group.group_name)
        self._inbox.zero_()
        torch.cuda.synchronize(device)
        limits = DeviceLimits.of(device)
        # No flag is sent before all inboxes are empty: the ranks meet here.
        num_sms = host.joiner([1] * self.size)(torch.full((1, 1), float(limits.num_sms)))
        programs = min(PROGRAMS, _PROGRAMS_PER_SM * int(num_sms.min()))
        # The inbox may lie inside of an allocation, at the same place on every rank.
        addresses = self._handle.buffer_ptrs
        inside = self._inbox.data_ptr() - addresses[self.rank]
        self._exchange = Exchange(
            torch.tensor([address + inside for address in addresses], dtype=torch.int64, device=device),
            torch.zeros(programs, dtype=torch.int32, device=device),
            self.rank,
            self.size,
            limits,
        )
        self._device = device
        self.spread(torch.zeros(1, dtype=torch.int64, device=device))  # compiles what runs outside of graphs

    @override
    def sum_add(self, partial: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        return self._exchange.sum_add(partial.contiguous(), bias, residual)

    @override
    def joiner(self, widths: Sequence[int]) -> Join:
        starts = list(accumulate(widths, initial=0))
        first_columns = torch.tensor(starts, dtype=torch.int32, device=self._device)
        return lambda part: self._exchange.join(part.contiguous(), first_columns, widths)

    @override
    def spread(self, values: Tensor) -> Tensor:
        return self._exchange.spread(values)
