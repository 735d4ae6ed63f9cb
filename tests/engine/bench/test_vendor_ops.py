"""What an ablation puts in the place of kernels takes the batches that these take."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from scattered_batch import scattered_batch

from draftline.engine.bench.ablation.vendor_ops import UnpaddedBatches
from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import LayerCache
from draftline.kernels.reference.ops import ReferenceOps


def test_padding_and_bounds_change_nothing_in_torch_s_attention() -> None:
    """The kernels' batches end with tokens of no row, written to entry -1, and the host may know bounds only."""
    rng = torch.Generator().manual_seed(3)
    exact, blocks = scattered_batch((3, 1, 5), (20, 40, 5), rng)
    padded = replace(
        exact,
        token_ids=F.pad(exact.token_ids, (0, 7)),
        positions=F.pad(exact.positions, (0, 7)),
        cache_index=F.pad(exact.cache_index, (0, 7), value=-1),
        query_lens_host=(16, 16, 16),
        context_lens_host=(64, 64, 64),
    )
    qkv = torch.randn(16, (4 + 2 + 2) * 32, generator=rng)
    rope = torch.randn(64, 2, 16, generator=rng)
    batches = UnpaddedBatches()
    caches = [torch.randn(2, blocks, 16, 2, 32, generator=torch.Generator().manual_seed(4)) for _ in range(2)]
    results = [
        ReferenceOps().rope_attention(rows, batch, LayerCache(*cache), AttentionSpec(rope=rope, scale=0.2))
        for rows, batch, cache in zip((qkv[:9], qkv), (exact, batches.of(padded)), caches, strict=True)
    ]
    assert torch.equal(results[0], results[1][:9])
    assert torch.equal(*caches)
    assert batches.of(padded) is batches.of(padded)
    assert batches.of(exact) is not batches.of(padded)
