"""The sizes of the models whose kernels sections.py times, and inputs of those sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.kernels.batch import Batch

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
BLOCK_SIZE = 16
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a model, which determine those of its kernels."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    qk_norm: bool

    @property
    def qkv(self) -> int:
        """Width of the merged query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """The weights of a layer by name: [N, K]."""
        return {
            "qkv": (self.qkv, self.hidden),
            "o": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }


LLAMA_8B = ModelSizes("llama-8b", 32, 4096, 32, 8, 128, 14336, 128256, False)
QWEN3 = ModelSizes("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, True)
SMOLLM2 = ModelSizes("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, False)


def randn(*shape: int, scale: float = 1.0, dtype: torch.dtype = DTYPE) -> Tensor:
    """Normal random numbers in the model's dtype."""
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype)


def make_batch(rows: int, query_len: int, context: int) -> Batch:
    """A batch of rows of equal lengths over scattered blocks."""
    blocks = -(-context // BLOCK_SIZE)
    tables = torch.randperm(rows * blocks, device=DEVICE).int().view(rows, blocks)
    positions = torch.arange(context - query_len, context, device=DEVICE).repeat(rows)
    row = torch.arange(rows, device=DEVICE).repeat_interleave(query_len)
    return Batch(
        token_ids=positions,
        positions=positions,
        cache_index=tables[row, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_starts=torch.arange(0, rows * query_len + 1, query_len, dtype=torch.int32, device=DEVICE),
        context_lens=torch.full((rows,), context, dtype=torch.int32, device=DEVICE),
        block_tables=tables,
        logits_index=positions,
        query_lens_host=(query_len,) * rows,
        context_lens_host=(context,) * rows,
    )


def make_mixed_batch(
    rows: list[tuple[int, int]], query_len: int, max_rows: int, max_tokens: int, *, bound: int
) -> Batch:
    """A batch of rows with these query tokens and contexts over scattered blocks, padded to the bounds of a graph.

    Args:
        rows: each row's query tokens and context. All tokens of rows with up to ``query_len`` are decided, of others the last one.
        query_len: the query tokens of decodes or verifies.
        max_rows: the graph's rows.
        max_tokens: its tokens.
        bound: that of contexts.
    """
    blocks = [-(-context // BLOCK_SIZE) for _, context in rows]
    order = torch.randperm(sum(blocks)).int().split(blocks)
    tables = torch.zeros(max_rows, bound // BLOCK_SIZE, dtype=torch.int32)
    positions = torch.zeros(max_tokens, dtype=torch.int64)
    cache_index = torch.full((max_tokens,), -1)
    starts, wanted = [0], list[int]()
    for index, ((length, context), own) in enumerate(zip(rows, order, strict=True)):
        tables[index, : len(own)] = own
        start, end = starts[-1], starts[-1] + length
        position = torch.arange(context - length, context)
        positions[start:end] = position
        cache_index[start:end] = tables[index, position // BLOCK_SIZE].long() * BLOCK_SIZE + position % BLOCK_SIZE
        starts.append(end)
        wanted += range(start if length <= query_len else end - 1, end)
    padding = max_rows - len(rows)
    contexts = torch.tensor([context for _, context in rows] + [1] * padding, dtype=torch.int32)
    logits = min(max_rows * query_len, max_tokens)
    return Batch(
        token_ids=positions.to(DEVICE),
        positions=positions.to(DEVICE),
        cache_index=cache_index.to(DEVICE),
        query_starts=torch.tensor(starts + [starts[-1]] * padding, dtype=torch.int32, device=DEVICE),
        context_lens=contexts.to(DEVICE),
        block_tables=tables.to(DEVICE),
        logits_index=torch.tensor(wanted + [0] * (logits - len(wanted)), device=DEVICE),
        query_lens_host=(max_tokens, *(query_len,) * (max_rows - 1)),
        context_lens_host=(bound,) * max_rows,
        longest_first=torch.argsort(contexts, descending=True, stable=True).int().to(DEVICE),
    )
