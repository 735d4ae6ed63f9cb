"""The tensors of one ragged forward pass: lower layers see these instead of sequences.

A batch has R rows (one per running sequence in the step) and T tokens (all rows' query tokens, one row after the
other). Every row reads its own paged history. A decode, a K+1-token verify and a prompt chunk differ only in length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftline.kernels.zeros import zeros


@dataclass(frozen=True, slots=True)
class HistoryParts:
    """The parts into which histories are divided, each for a program.

    Attributes:
        starts: [R + 1] int32, of all parts row r has ``starts[r]:starts[r + 1]``; none if its history is not divided.
        rows: [P] int32, the row of each part; entries past the last part are undefined.
        length: [1] int32, tokens of a part.
        arrived: [P * G] int32, with G key/value heads: how many parts of a history are done, by its first part. Zeros
            between kernels.
    """

    starts: Tensor
    rows: Tensor
    length: Tensor
    arrived: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass over T query tokens of R rows.

    Attributes:
        token_ids: [T] int64, the query tokens.
        positions: [T] int64, each token's position in its sequence.
        cache_index: [T] int64, the cache entry of each token's key and value: ``block * block_size + offset``.
            -1 for padding behind the last row's tokens, which is written nowhere.
        query_starts: [R + 1] int32, row r owns tokens ``query_starts[r]:query_starts[r + 1]``.
        context_lens: [R] int32, tokens of each row after this forward (history plus query).
        block_tables: [R, max_blocks] int32, the cache blocks of each row; entries past its last block are undefined.
        logits_index: [S] int64, the tokens (indices into T) to return logits of.
        query_lens_host: the R query lengths as the host knows them: exact, or upper bounds.
        context_lens_host: the R context lengths as the host knows them.
        longest_first: [R] int32, the rows by descending context length, to start long ones first; None: unknown.
        logits_starts: [R + 1] int32, of the S tokens row r owns ``logits_starts[r]:logits_starts[r + 1]``, its last
            ones; None: all T tokens go through every layer whole.
        logits_lens_host: how many of the S tokens each row owns, or upper bounds; with ``logits_starts``.
        parts: the parts of its histories; None: they are not divided.
        settled: whether all keys and values before the query tokens are in the cache when a kernel of the forward pass
            starts. Those of a draft may not be when the next pass of its round starts.
    """

    token_ids: Tensor
    positions: Tensor
    cache_index: Tensor
    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor
    logits_index: Tensor
    query_lens_host: tuple[int, ...]
    context_lens_host: tuple[int, ...]
    longest_first: Tensor | None = None
    logits_starts: Tensor | None = None
    logits_lens_host: tuple[int, ...] = ()
    parts: HistoryParts | None = None
    settled: bool = True

    def logits_only(self) -> Batch | None:
        """The S tokens whose logits are wanted alone, to attend to a cache of all T; None without ``logits_starts``."""
        if self.logits_starts is None:
            return None
        wanted = self.logits_index
        return replace(
            self,
            token_ids=self.token_ids.index_select(0, wanted),
            positions=self.positions.index_select(0, wanted),
            cache_index=self.cache_index.index_select(0, wanted),
            query_starts=self.logits_starts,
            logits_index=torch.arange(wanted.shape[0], device=wanted.device),
            query_lens_host=self.logits_lens_host,
            logits_starts=None,
            logits_lens_host=(),
        )


@dataclass(frozen=True, slots=True)
class DraftQuery:
    """What a drafter reads of each row in a round's first pass: its newest tokens, then entries without a token.

    The last token decides the first draft, and each entry behind it another draft. Each further pass reads the draft of
    the one before it, and decides the next.

    Attributes:
        tokens: how many tokens.
        shift: by how many positions a token's query, key and value stand before the token.
        ahead: the entries behind the tokens. Of those behind a row's own drafts, for which it may have no block, the
            keys and values go where those of the first one go.
        ahead_id: what the first of these entries has in the place of a token id; the others count up from it.
    """

    tokens: int
    shift: int
    ahead: int = 0
    ahead_id: int = 0

    @property
    def entries(self) -> int:
        """The entries of a row."""
        return self.tokens + self.ahead


@dataclass(frozen=True, slots=True)
class Inputs:
    """A step's batch, and the tokens that its logits decide.

    Attributes:
        batch: the forward pass's inputs.
        slots: [S] int64, the slot of the sequence that each of the S logits rows belongs to.
        positions: [S] int64, the position of the token to sample from each row; -1 for padding.
    """

    batch: Batch
    slots: Tensor
    positions: Tensor


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The paged keys and values of one layer.

    Attributes:
        keys: [num_blocks, block_size, num_kv_heads, head_dim], contiguous.
        values: the same for the values.
        scales: of INT8, the scales of keys and of values, [num_blocks, block_size, num_kv_heads] float32; else None.
    """

    keys: Tensor
    values: Tensor
    scales: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, slots=True)
class KVCache:
    """The paged keys and values of one model.

    Attributes:
        layers: each layer's.
    """

    layers: tuple[LayerCache, ...]

    @staticmethod
    def allocate(
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        """Allocate zeroed keys and values for ``num_blocks`` blocks of ``block_size`` tokens a layer.

        On a CPU the system gives their pages when they are first written: blocks that were never used take no memory.
        """
        shape = (num_blocks, block_size, num_kv_heads, head_dim)

        def pair(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
            return zeros(shape, dtype, device), zeros(shape, dtype, device)

        scaled = dtype == torch.int8
        return KVCache(
            tuple(
                LayerCache(*pair(shape, dtype), pair(shape[:3], torch.float32) if scaled else None)
                for _ in range(num_layers)
            )
        )

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self.layers[0].keys.shape[1]


def bytes_a_head(head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one head of one token's keys (or values) in a cache of this type, its scale included."""
    return head_dim * dtype.itemsize + (torch.float32.itemsize if dtype == torch.int8 else 0)
