"""``SymmetricCollectives``: collectives between the GPUs of a host, one launch each, over their peers' memory.

Every rank has an inbox that its peers write to (`inbox.py`). A program sends its block of elements to each peer, then a flag
behind it, waits for the peers' flags, and computes its block from its inbox. The sums of few rows need no flag (`words.py`). Those of
many, between four ranks and more, are in two shots: each rank adds one part of a block, and then sends its sums. Bits
depend neither on timing nor on the number of rows: the partials are added in the order of the ranks.

Program p of every rank works on the same elements, and has cells of its own in each inbox. It counts its exchanges, in memory,
so that a CUDA graph counts on; a cell's flag holds the count of what is in it. There are two cells for each sender, used in
turn: a peer writes an exchange's cell only after it has received all of the exchange before, and so after this rank has read
what was in the cell. No other synchronisation is needed.

A rank that waits for a minute stops its GPU with an error. Far earlier, the watchdog has ended the process if a peer has died.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd

import torch
import triton
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup
from typing_extensions import override

from draftline.kernels.collectives import Collectives, Join
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.flags import exchange_columns_kernel, one_shot_sum_kernel, two_shot_sum_kernel
from draftline.kernels.triton.inbox import PROGRAMS, WORDS, cell_bytes, inbox_bytes
from draftline.kernels.triton.linear.dense import few_overlap
from draftline.kernels.triton.overlap import launch_options
from draftline.kernels.triton.words import MAX_WORDS, WORD_ELEMENT_BYTES, word_spread_kernel, word_sum_kernel

_PROGRAMS_PER_SM = 2
"""Programs of an exchange on a multiprocessor: while one waits, the other sends. All run at once, so none waits for one that cannot start."""

_TWO_SHOTS_RANKS = 4
"""Ranks from which on two shots send at most half of what one does."""

_TWO_SHOTS = 1 << 20
"""Elements from which on that pays for waiting twice."""

_SM_REGISTERS = 65536

_THREADS = 512
"""The most threads of a program of which as many fit a multiprocessor."""


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
        kernel, parts = one_shot_sum_kernel, 1
        if self.size >= _TWO_SHOTS_RANKS and elements >= _TWO_SHOTS:
            kernel, parts = two_shot_sum_kernel, self.size
        block = self._block(1, triton.cdiv(elements, parts), partial)
        programs = min(triton.cdiv(elements, parts * block), self._programs)
        kernel[(programs,)](*tensors, elements, n, BLOCK=block, **_size_options(block), **options)
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
        exchange_columns_kernel[(min(rows * blocks, self._programs),)](
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
