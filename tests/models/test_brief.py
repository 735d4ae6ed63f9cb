"""A model's first layers, for rehearsals."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from kept_states import KeptStates
from random_checkpoint import RandomCheckpoint, llama
from torch import Tensor

from draftline.kernels.batch import KVCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.models.brief import BriefModel
from draftline.models.families import build_model
from draftline.models.hidden_states import NO_HIDDEN_STATES, HiddenStateSink
from draftline.models.model import Model

CPU = torch.device("cpu")
LAYERS = 6


class EagerOps(ReferenceOps):
    scripted: ClassVar[bool] = False


def decoder(ops: ReferenceOps, *windows: int | None) -> Model:
    config = llama(num_layers=len(windows), sliding_windows=windows)
    return build_model(RandomCheckpoint(config, std=0.2), config, ops, torch.float32, CPU)


def run(model: Model, ops: ReferenceOps, layers: int, sink: HiddenStateSink) -> Tensor:
    """The logits of a prompt's last token, where no entry of the cache is known."""
    config = model.config
    slots = SlotTable.allocate(1, 64, 16, CPU)
    slots.tokens.copy_(torch.arange(64).expand_as(slots.tokens))
    cache = KVCache.allocate(layers, 16, 4, config.num_kv_heads, config.head_dim, dtype=torch.float32, device=CPU)
    with torch.inference_mode():
        batch = ops.gather(slots, torch.arange(1), (9,), (0,), (1,), 4).batch
        return model.forward(batch, cache, sink)


@pytest.mark.parametrize(
    ("windows", "fewest"),
    [
        ((None,) * LAYERS, 2),  # one that is not the last, and one that is
        ((8, 8, None, 8, 8, None), 6),
        ((8, None, 8, None, 8, None), 4),
        ((8, None, 8, 8, 8, 8), 3),
        ((None, 8, 8, 8, 8, 9), 6),
        ((None,), 1),
    ],
)
def test_it_has_every_kind_of_layer(windows: tuple[int | None, ...], fewest: int) -> None:
    ops = EagerOps()
    model = decoder(ops, *windows)
    assert model.brief_layers == fewest
    brief = run(BriefModel(model), ops, len(windows), NO_HIDDEN_STATES)
    assert torch.equal(brief, run(model, ops, fewest, NO_HIDDEN_STATES)), "a cache of fewer layers lets fewer compute"
    assert torch.equal(brief, run(model, ops, len(windows), NO_HIDDEN_STATES)) == (fewest == len(windows))


@pytest.mark.parametrize(("wanted", "early"), [((2, 4), (0, 1)), ((1, 3, 6), (0, 1, 3)), ((6,), (2,))])
def test_a_sink_gets_as_many_states(wanted: tuple[int, ...], early: tuple[int, ...]) -> None:
    """The last layer's output takes a path of its own through the model."""
    ops = EagerOps()
    model, sink, first = decoder(ops, *(None,) * LAYERS), KeptStates(*wanted), KeptStates(*early)
    logits = run(BriefModel(model), ops, LAYERS, sink)
    assert torch.equal(logits, run(model, ops, max(2, len(wanted)), first))
    assert torch.equal(sink.states, first.states)


def test_a_program_has_all_layers() -> None:
    assert decoder(ReferenceOps(), *(None,) * LAYERS).brief_layers == LAYERS
