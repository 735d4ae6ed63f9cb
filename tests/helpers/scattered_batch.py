"""A batch of given lengths over scattered cache blocks, for the tests of operations that read the cache."""

from __future__ import annotations

import torch

from draftline.kernels.batch import Batch

OUTSIDE = 2**30
"""A block that no pool has: a kernel that reads it fails its test."""


def scattered_batch(
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    rng: torch.Generator,
    *,
    block_size: int = 16,
    unused: int = OUTSIDE,
) -> tuple[Batch, int]:
    """The batch, and the size of the pool. Table entries past a row's last block are ``unused``."""
    device = rng.device
    needed = [-(-context // block_size) for context in context_lens]
    order = torch.randperm(sum(needed), generator=rng, device=device).int()
    tables = torch.full((len(needed), max(needed) + 1), unused, dtype=torch.int32, device=device)
    for row, blocks in enumerate(order.split(needed)):
        tables[row, : len(blocks)] = blocks
    spans = list(zip(query_lens, context_lens, strict=True))
    positions = torch.cat([torch.arange(context - query, context, device=device) for query, context in spans])
    rows = torch.arange(len(spans), device=device).repeat_interleave(torch.tensor(query_lens, device=device))
    batch = Batch(
        token_ids=positions,
        positions=positions,
        cache_index=tables[rows, positions // block_size].long() * block_size + positions % block_size,
        query_starts=torch.tensor([0, *query_lens], device=device).cumsum(0).int(),
        context_lens=torch.tensor(context_lens, dtype=torch.int32, device=device),
        block_tables=tables,
        logits_index=positions,
        query_lens_host=query_lens,
        context_lens_host=context_lens,
    )
    return batch, sum(needed)
