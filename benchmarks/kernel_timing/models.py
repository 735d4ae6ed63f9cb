"""The sizes of the models whose kernels `sections.py` times, and inputs of those sizes."""

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
class Model:
    """The sizes of a model's kernels."""

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
        """A layer's weights: [N, K]."""
        return {
            "qkv": (self.qkv, self.hidden),
            "o": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }


LLAMA_8B = Model("llama-8b", 32, 4096, 32, 8, 128, 14336, 128256, False)
QWEN3 = Model("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, True)
SMOLLM2 = Model("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, False)


def randn(*shape: int, scale: float = 1.0, dtype: torch.dtype = DTYPE) -> Tensor:
    """Random numbers in the model's type."""
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype)


def make_batch(rows: int, query_len: int, context: int) -> Batch:
    """Rows of equal lengths over scattered blocks."""
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
