"""A token's attention has the same bits however it is computed: see `online_softmax.py`.

One prompt in one chunk gives every token's expected result. Then its tokens come again, as decodes, verifies and chunks,
alone and together, with histories that programs share in all kinds of ways. `tests/gpu/test_one_arithmetic.py` does the same
in the types that models run in.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from known_prompt import Layer, Prompt, Run, copy_of, make_prompt
from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.triton.attention.decode import attend_short, decode_attention
from draftline.kernels.triton.attention.decode_plan import DecodePlan, plan_decode
from draftline.kernels.triton.attention.plan import AttentionShape, Tile
from draftline.kernels.triton.attention.rope import rope_write_kv
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps

pytestmark = pytest.mark.usefixtures("dots_in_order", "short_joins")

LENGTH = 41
"""Tokens of the prompt: three tiles of keys, the last one not full."""

CASES = {
    "gqa": Layer(3, 1, 32),
    "window-qk-norm": Layer(2, 1, 16, window=21, qk_norm=True),
    "int8-80": Layer(1, 1, 80, cache=torch.int8),
    "fp8-window-soft-cap": Layer(2, 1, 16, window=30, soft_cap=3.0, cache=torch.float8_e4m3fn),
    "fp8-qk-norm": Layer(3, 1, 16, qk_norm=True, cache=torch.float8_e4m3fn),
    "mha-80-window": Layer(2, 2, 80, window=19),
}
_SLOW = ("fp8-qk-norm", "mha-80-window")
"""The others have every option once."""


def by_plan(num_sms: int) -> Run:
    """As the engine does on a device with so many multiprocessors."""

    def run(qkv: Tensor, batch: Batch, layer: LayerCache, spec: AttentionSpec) -> Tensor:
        return TritonOps.sized(DeviceLimits.known(80, num_sms)).rope_attention(qkv, batch, layer, spec)

    return run


def shape_of(qkv: Tensor, layer: LayerCache, spec: AttentionSpec) -> AttentionShape:
    kv_heads, head_dim = layer.keys.shape[2:]
    group = qkv.shape[1] // head_dim // kv_heads - 2
    return AttentionShape.of(group, qkv, layer, DeviceLimits.known(80, 132))


def in_one_launch(num_splits: int) -> Run:
    """By `decode.py`, with so many programs a history."""

    def run(qkv: Tensor, batch: Batch, layer: LayerCache, spec: AttentionSpec) -> Tensor:
        plan = plan_decode(shape_of(qkv, layer, spec), batch.query_lens_host, batch.context_lens_host)
        assert plan is not None
        plan = dataclasses.replace(plan, num_splits=num_splits)
        return decode_attention(qkv, batch, layer, spec, plan=plan, overlap=False)

    return run


def by_short_tiles(num_splits: int, *, rotate: bool = False) -> Run:
    """As decodes and verifies beside prompts are, with so many programs a history; also longer queries, in several tiles."""

    def run(qkv: Tensor, batch: Batch, layer: LayerCache, spec: AttentionSpec) -> Tensor:
        shape, longest = shape_of(qkv, layer, spec), max(batch.query_lens_host)
        heads = shape.group * shape.num_kv_heads if rotate else 0
        queries = rope_write_kv(qkv, batch, layer, spec, first_head=heads)
        tile = Tile(16, shape.key_tile, 2, 3)
        fit = 1 if longest == 1 else tile.block_m // shape.group
        tiles = shape.num_tiles(max(batch.context_lens_host))
        plan = DecodePlan(tile, fit, longest, num_splits, tiles, -(-longest // fit))
        out = queries.new_empty(queries.shape[0], queries.shape[1] * queries.shape[2])
        attend_short(queries, batch, layer, spec, out, plan=plan, rotate=rotate)
        return out

    return run


@pytest.fixture(scope="module")
def made() -> dict[str, Prompt]:
    """Prompts by case, made once."""
    return {}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in _SLOW)) for name in CASES])
def prompt(request: pytest.FixtureRequest, made: dict[str, Prompt], rng: torch.Generator) -> Prompt:
    if request.param not in made:
        made[request.param] = make_prompt(CASES[request.param], LENGTH, by_plan(132), rng)
    return made[request.param]


def test_chunks_at_any_cut(prompt: Prompt) -> None:
    prompt.check(by_plan(132), [(7, 34)])
    prompt.check(by_plan(132), [(5, 33), (0, 3)])


def test_decodes_and_verifies_alone(prompt: Prompt) -> None:
    for span in ((0, 1), (16, 1), (40, 1), (31, 2), (36, 5)):
        prompt.check(by_plan(132), [span])


def test_rows_together(prompt: Prompt) -> None:
    """Few and many for the device, of one kind and of several, with a prompt chunk and without."""
    prompt.check(by_plan(132), [(at, 1) for at in (3, 32, 40)])
    prompt.check(by_plan(1), [(31, 3), (40, 1)])
    prompt.check(by_plan(16), [(31, 2), (40, 1), (8, 33)])


@pytest.mark.parametrize("num_splits", [1, pytest.param(2, marks=pytest.mark.slow), 7])
def test_histories_that_programs_share(num_splits: int, prompt: Prompt) -> None:
    for spans in ([(40, 1), (15, 1)], [(30, 3)]):
        prompt.check(by_short_tiles(num_splits), spans)
        prompt.check(by_short_tiles(num_splits, rotate=True), spans)
        prompt.check(in_one_launch(num_splits), spans)


@pytest.mark.parametrize("num_splits", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_chunk_in_short_tiles(num_splits: int, prompt: Prompt) -> None:
    """They read the chunk's own keys from the cache, where a chunk's tiles read them from the activations."""
    prompt.check(by_short_tiles(num_splits), [(7, 34)])


def test_other_tiles_of_keys_have_other_bits(monkeypatch: pytest.MonkeyPatch, rng: torch.Generator) -> None:
    """Or the tests here would show nothing."""
    prompt = make_prompt(CASES["gqa"], LENGTH, by_plan(132), rng)
    monkeypatch.setattr(AttentionShape, "key_tile", property(lambda shape: 32))
    out = by_plan(130)(prompt.qkv.clone(), prompt.batch([(0, LENGTH)]), copy_of(prompt.layer), prompt.spec)
    torch.testing.assert_close(out, prompt.expected)
    assert not torch.equal(out, prompt.expected)
