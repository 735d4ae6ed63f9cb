"""The decoder's forward pass, operation by operation."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from kept_states import KeptStates
from random_checkpoint import RandomCheckpoint, llama
from torch import Tensor
from typing_extensions import override

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, KVCache, LayerCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.models.families import build_model
from draftline.models.hidden_states import NO_HIDDEN_STATES, HiddenStateSink, UnreadStates

CPU = torch.device("cpu")
CONFIG = llama(
    hidden_size=48,
    intermediate_size=64,
    num_layers=3,
    num_heads=4,
    head_dim=12,
    max_positions=64,
    sliding_windows=(None, 12, 20),
)
BLOCK = 4


class CountingOps(ReferenceOps):
    """Counts the tokens that attend, layer by layer."""

    scripted: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[int] = []

    @override
    def attention(self, q: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        self.tokens.append(q.shape[0])
        return super().attention(q, batch, cache, spec)


def run(ops: CountingOps, sink: HiddenStateSink, *, choose: bool) -> Tensor:
    """Logits of a chunk's last token, a chunk that decides none, a verify and a decode; then of a decode of each."""
    counts, lengths, starts = (1, 0, 3, 1), (20, 9, 3, 1), (5, 8, 17, 30)
    generator = torch.Generator().manual_seed(0)
    model = build_model(RandomCheckpoint(CONFIG, std=0.2), CONFIG, ops, torch.float32, CPU)
    slots = SlotTable.allocate(4, 64, 16, CPU)
    slots.block_tables.copy_(torch.randperm(64, generator=generator).view(4, 16))
    slots.tokens.copy_(torch.randint(0, CONFIG.vocab_size, slots.tokens.shape, generator=generator))
    cache = KVCache.allocate(3, 64, BLOCK, CONFIG.num_kv_heads, CONFIG.head_dim, dtype=torch.float32, device=CPU)
    rows = torch.arange(4)
    with torch.inference_mode():
        history = ops.gather(slots, rows, starts, (0,) * 4, (0, 0, 0, 1), BLOCK).batch
        model.forward(history, cache)
        ops.tokens.clear()
        batch = ops.gather(slots, rows, lengths, starts, counts, BLOCK).batch
        if choose:
            begin = torch.tensor([0, *counts]).cumsum(0).int()
            batch = replace(batch, logits_starts=begin, logits_lens_host=counts)
        logits = model.forward(batch, cache, sink)
        ends = tuple(start + length for start, length in zip(starts, lengths, strict=True))
        later = ops.gather(slots, rows, (1,) * 4, ends, (1,) * 4, BLOCK).batch
        return torch.cat((logits, model.forward(later, cache)))


def test_the_last_layer_goes_on_with_the_tokens_that_decide() -> None:
    ops = CountingOps()
    all_tokens = run(ops, NO_HIDDEN_STATES, choose=False)
    assert ops.tokens == [33, 33, 33, 4, 4, 4]
    chosen = run(ops, NO_HIDDEN_STATES, choose=True)
    assert ops.tokens == [33, 33, 5, 4, 4, 4]
    torch.testing.assert_close(chosen, all_tokens)


@pytest.mark.parametrize("layers", [(0, 2), (1, 3)])
def test_a_sink_has_the_states_of_all_tokens(layers: tuple[int, ...]) -> None:
    sink, expected = KeptStates(*layers), KeptStates(*layers)
    chosen, all_tokens = (run(CountingOps(), each, choose=one) for each, one in ((sink, True), (expected, False)))
    assert sink.states.shape == (33, 2, CONFIG.hidden_size)
    torch.testing.assert_close(sink.states, expected.states)
    torch.testing.assert_close(chosen, all_tokens)


def test_states_that_are_wanted_but_not_read_are_of_the_same_tokens() -> None:
    read, unread = CountingOps(), CountingOps()
    run(read, KeptStates(1, 3), choose=True)
    run(unread, UnreadStates((3,)), choose=True)
    assert read.tokens == unread.tokens == [33, 33, 33, 4, 4, 4]
