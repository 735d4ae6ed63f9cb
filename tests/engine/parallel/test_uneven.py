"""All ranks agree on which steps are uneven."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import torch

from draftline.engine.parallel.target import Target
from draftline.kernels.batch import KVCache
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps


def test_ranks_with_more_heads_choose_the_same_shapes() -> None:
    """Of three groups, one of two ranks has two: the other's attention would take less time by itself."""
    meta = torch.device("meta")
    table = SlotTable.allocate(128, 4096, 256, meta)
    caches = [KVCache.allocate(1, 64, 16, groups, 128, dtype=torch.bfloat16, device=meta) for groups in (2, 1)]
    target = SimpleNamespace(
        shape=SimpleNamespace(num_heads=9, num_kv_heads=3),
        config=SimpleNamespace(tensor_parallel_size=2),
        ops=TritonOps.sized(DeviceLimits.known(90, 132)),
    )
    first, second = (Target.uneven(cast(Target, target), table, cache) for cache in caches)
    draw, found = random.Random(0), []
    for _ in range(300):
        usual, longest = draw.randint(100, 1000), draw.randint(500, 4000)
        lengths = [*[usual] * draw.randint(1, 100), *[longest] * draw.randint(1, 5)]
        query_len, prompts = draw.choice([1, 3, 5]), draw.choice([0, 0, 1, 4])
        found.append(first(query_len, lengths, prompts))
        assert second(query_len, lengths, prompts) == found[-1]
    assert 20 < sum(found) < 280
