"""The Triton operations on a real GPU, in the types that models run in, against float32 references."""

from __future__ import annotations

import pytest
import torch
from covering import MAX_PAIRS, covering
from gpu_cases import HEADS, TYPES, assert_near, draw
from scattered_batch import scattered_batch
from torch import Tensor
from torch.nn.functional import silu

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.philox import gumbel
from draftline.kernels.reference import sampling
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import Masks, SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.inputs.gather import GatherBounds, gather_planned, plan_on_host
from draftline.kernels.triton.ops import TritonOps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none here")

BLOCK_SIZE = 16
EPS = 1e-6


BATCHES = {
    "decode-1": ((1,), (1500,)),
    "decode-64": ((1,) * 64, tuple(17 * row + 1 for row in range(64))),
    "decode-300": ((1,) * 300, tuple(3 * row + 1 for row in range(300))),
    "verify": ((5,) * 9, tuple(111 * row + 5 for row in range(9))),
    "mixed": ((1, 300, 0, 5, 33, 1000), (900, 300, 4, 505, 40, 1500)),
}


def check_attention(
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
    heads: tuple[int, int, int],
    window: int | None,
    dtype: torch.dtype,
    ops: TritonOps,
    rng: torch.Generator,
) -> None:
    num_heads, kv_heads, head_dim = heads
    batch, blocks = scattered_batch(*lengths, rng, block_size=BLOCK_SIZE, unused=0)
    q = draw(rng, sum(lengths[0]), num_heads, head_dim, dtype=dtype)
    keys = draw(rng, blocks, BLOCK_SIZE, kv_heads, head_dim, dtype=dtype)
    values = draw(rng, blocks, BLOCK_SIZE, kv_heads, head_dim, dtype=dtype)
    spec = AttentionSpec(torch.empty(0), head_dim**-0.5, window)
    out = ops.attention(q, batch, LayerCache(keys, values), spec)
    wide = ReferenceOps().attention(q.float(), batch, LayerCache(keys.float(), values.float()), spec)
    assert_near(out, wide)


@pytest.mark.parametrize(
    ("heads", "lengths"),
    covering(HEADS, {name: (lengths,) for name, lengths in BATCHES.items()}, group="attention", max_pairs=MAX_PAIRS),
)
def test_attention(
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
    heads: tuple[int, int, int],
    ops: TritonOps,
    rng: torch.Generator,
) -> None:
    check_attention(lengths, heads, None, torch.bfloat16, ops, rng)


@pytest.mark.xdist_group("attention-window")
@pytest.mark.parametrize("window", [16, 100])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
def test_attention_in_a_window(
    lengths: tuple[tuple[int, ...], tuple[int, ...]], window: int, ops: TritonOps, rng: torch.Generator
) -> None:
    check_attention(lengths, *HEADS["8x8x96"], window, torch.bfloat16, ops, rng)


def test_attention_in_float16(ops: TritonOps, rng: torch.Generator) -> None:
    check_attention(BATCHES["mixed"], *HEADS["32x8x128"], None, torch.float16, ops, rng)


@pytest.mark.parametrize(
    ("width", "rows", "dtype"),
    covering(
        {str(w): w for w in (576, 1024, 4096)},
        {str(r): r for r in (1, 7, 2000)},
        TYPES,
        group="norms",
        max_pairs=MAX_PAIRS,
    ),
)
def test_norms(width: int, rows: int, dtype: torch.dtype, ops: TritonOps, rng: torch.Generator) -> None:
    x, residual = draw(rng, 2, rows, width, dtype=dtype)
    weight = draw(rng, width, dtype=dtype)
    assert_near(ops.rms_norm(x, weight, EPS), ReferenceOps().rms_norm(x.float(), weight.float(), EPS))
    normed, total = ops.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    assert_near(normed, ReferenceOps().rms_norm(total.float(), weight.float(), EPS))


@pytest.mark.xdist_group("norms")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_joined_norms(dtype: torch.dtype, ops: TritonOps, device: torch.device, rng: torch.Generator) -> None:
    table, hidden = draw(rng, 500, 576, dtype=dtype), draw(rng, 33, 576, dtype=dtype)
    weights = draw(rng, 2, 576, dtype=dtype)
    token_ids = torch.randint(0, 500, (33,), generator=rng, device=device)
    joined, normed = ops.joined_norms(table, token_ids, weights[0], hidden, weights[1], EPS)
    apart = (ops.rms_norm(table[token_ids], weights[0], EPS), ops.rms_norm(hidden, weights[1], EPS))
    assert torch.equal(joined, torch.cat(apart, dim=1))
    assert torch.equal(normed, apart[1])


@pytest.mark.xdist_group("norms")
@pytest.mark.parametrize("rows", [1, 40, 300])
def test_moved_rows(rows: int, ops: TritonOps, device: torch.device, rng: torch.Generator) -> None:
    table, index = draw(rng, 500, 576, dtype=torch.bfloat16), torch.randperm(500, generator=rng, device=device)[:rows]
    index[-1] = -1
    taken = ops.take_rows(table, index)
    assert torch.equal(taken, table[index])
    wider = torch.zeros(rows, 3, 576, dtype=torch.bfloat16, device=device)
    ops.copy_rows(taken, wider[:, 1])
    assert torch.equal(wider[:, 1], taken)
    put = torch.zeros_like(table)
    ops.put_rows(taken, index, put)
    assert torch.equal(put[index[-1]], table[-1])
    assert torch.equal(put[index], table[index])


@pytest.mark.xdist_group("silu")
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (64, 14336), (3000, 3072)])
def test_silu_mul(rows: int, width: int, dtype: torch.dtype, ops: TritonOps, rng: torch.Generator) -> None:
    gate_up = draw(rng, rows, 2 * width, dtype=dtype)
    assert_near(ops.silu_mul(gate_up), silu(gate_up[:, :width].float()) * gate_up[:, width:].float())


@pytest.mark.xdist_group("gelu")
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 768), (7, 1152), (2000, 6912)])
def test_what_gpt2_and_gemma_have(
    rows: int, width: int, dtype: torch.dtype, ops: TritonOps, rng: torch.Generator
) -> None:
    x, residual = draw(rng, 2, rows, 2 * width, dtype=dtype)
    weight, bias = draw(rng, 2, 2 * width)
    reference = ReferenceOps()
    wide = x.float()
    assert_near(ops.layer_norm(x, weight.to(dtype), bias.to(dtype), EPS), reference.layer_norm(wide, weight, bias, EPS))
    expected = reference.rms_norm_add(wide, weight, EPS, residual.float())
    assert_near(ops.rms_norm_add(x, weight, EPS, residual), expected)
    assert_near(ops.gelu(x), reference.gelu(wide))
    assert_near(ops.gelu_mul(x), reference.gelu_mul(wide))
    assert_near(ops.soft_cap(50 * x, 30.0), reference.soft_cap((50 * x).float(), 30.0))


@pytest.mark.parametrize(
    ("heads", "qk_norm", "dtype"),
    covering(HEADS, {"plain": False, "qk-norm": True}, TYPES, group="rope", max_pairs=MAX_PAIRS),
)
def test_rope_write_kv(
    heads: tuple[int, int, int], qk_norm: bool, dtype: torch.dtype, ops: TritonOps, rng: torch.Generator
) -> None:
    num_heads, kv_heads, head_dim = heads
    batch, blocks = scattered_batch((1, 200, 5), (77, 200, 1000), rng, block_size=BLOCK_SIZE, unused=0)
    frequency = 10000.0 ** -(torch.arange(0, head_dim, 2, device=rng.device) / head_dim)
    angle = torch.arange(1024, device=rng.device)[:, None] * frequency
    rope = torch.stack([angle.cos(), angle.sin()], dim=1)
    qkv = draw(rng, 206, (num_heads + 2 * kv_heads) * head_dim, dtype=dtype)
    caches = torch.zeros(2, blocks, BLOCK_SIZE, kv_heads, head_dim, device=rng.device, dtype=dtype)
    wide_caches = caches.float()
    weights = draw(rng, 2, head_dim, dtype=dtype)
    norms = (weights[0], weights[1]) if qk_norm else None
    wide_norms = (weights[0].float(), weights[1].float()) if qk_norm else None
    spec, wide_spec = (AttentionSpec(rope, 1.0, norms=chosen, eps=EPS) for chosen in (norms, wide_norms))
    queries = ops.rope_write_kv(qkv.clone(), batch, LayerCache(caches[0], caches[1]), spec)
    wide = ReferenceOps().rope_write_kv(qkv.float(), batch, LayerCache(wide_caches[0], wide_caches[1]), wide_spec)
    assert_near(queries, wide)
    assert_near(caches[0], wide_caches[0])
    assert torch.equal(caches[1].float(), wide_caches[1])


FEATURES = {
    "greedy": SamplingFeatures.NONE,
    "noise": SamplingFeatures.TEMPERATURE,
    "top-p": SamplingFeatures.TEMPERATURE | SamplingFeatures.TOP_P,
    "top-k": SamplingFeatures.TEMPERATURE | SamplingFeatures.TOP_K,
    "truncated": SamplingFeatures.TEMPERATURE
    | SamplingFeatures.TOP_K
    | SamplingFeatures.TOP_P
    | SamplingFeatures.MIN_P,
    "everything": ~SamplingFeatures.NONE,
}
SPREADS = {"level": 0.5, "spread": 2.0, "steep": 8.0}


@pytest.mark.parametrize(
    ("vocab", "features", "spread"),
    covering({str(v): v for v in (49_152, 151_936)}, FEATURES, SPREADS, group="sample", max_pairs=MAX_PAIRS),
)
def test_sample(
    features: SamplingFeatures, vocab: int, spread: float, ops: TritonOps, device: torch.device, rng: torch.Generator
) -> None:
    rows = 96
    slots = SlotTable.allocate(rows, 512, 4, device)
    slots.tokens.copy_(torch.randint(0, vocab, slots.tokens.shape, generator=rng, device=device))
    slots.seed.copy_(torch.randint(-(2**62), 2**62, (rows,), generator=rng, device=device))
    slots.prompt_lens.fill_(100)
    slots.min_length.copy_(torch.randint(0, 600, (rows,), generator=rng, device=device))

    def choices(target: Tensor, *values: float) -> None:
        pick = torch.randint(0, len(values), (rows,), generator=rng, device=device)
        target.copy_(torch.tensor(values, device=device)[pick])

    if SamplingFeatures.TEMPERATURE in features:
        choices(slots.temperature, 0.0, 0.3, 0.7, 1.0, 1.5)
    if SamplingFeatures.TOP_K in features:
        choices(slots.top_k, 0, 1, 20, 1000)
    if SamplingFeatures.TOP_P in features:
        choices(slots.top_p, 1.0, 0.95, 0.5, 0.999)
    if SamplingFeatures.MIN_P in features:
        choices(slots.min_p, 0.0, 0.05)
    choices(slots.repetition_penalty, 1.0, 1.3)
    choices(slots.presence_penalty, 0.0, 0.5)
    choices(slots.frequency_penalty, 0.0, 0.2)
    slots.stop_ids[:, :2] = torch.tensor([5, 7], device=device)
    slots.bias_ids[:, 0] = 5
    slots.bias_values[:, 0] = 4.0
    words = torch.randint(-(2**31), 2**31, (rows + 1, vocab // 32), generator=rng, device=device, dtype=torch.int32)
    words[0] = -1
    masks = Masks(words, torch.arange(rows, dtype=torch.int32, device=device))
    logits = spread * draw(rng, rows, vocab)
    positions = torch.randint(100, 512, (rows,), generator=rng, device=device)
    step = SampleRows(torch.arange(rows, device=device), positions, features, masks)
    chosen = ops.sample(logits, step, slots)
    expected = sampling.sample(logits, step, slots)
    # Rounding can decide between two scores, and between two sums of weights and p: rarely.
    assert int((chosen != expected).sum()) <= 1
    assert torch.equal(chosen, ops.sample(logits, step, slots))


def test_noise_is_the_reference_s(ops: TritonOps, device: torch.device) -> None:
    """Through the sampler: with level logits the winner is where the noise is largest."""
    rows, vocab = 64, 151_936
    slots = SlotTable.allocate(rows, 4, 1, device)
    slots.temperature.fill_(1.0)
    slots.seed.copy_(torch.arange(rows, device=device) * 7_919_191_919_191)
    positions = torch.arange(rows, device=device) * 37
    step = SampleRows(torch.arange(rows, device=device), positions, SamplingFeatures.TEMPERATURE, None)
    chosen = ops.sample(torch.zeros(rows, vocab, device=device), step, slots)
    noise = gumbel(slots.seed, positions, vocab)
    # The device's logarithm and the host's may order two almost equal draws differently.
    picked = noise.gather(1, chosen[:, None]).squeeze(1)
    assert float((noise.amax(dim=1) - picked).max()) < 1e-5


@pytest.mark.xdist_group("draft")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("vocab", [49_152, 16_384], ids=str)
def test_draft_sampled(
    vocab: int, dtype: torch.dtype, ops: TritonOps, device: torch.device, rng: torch.Generator
) -> None:
    """The tokens that the sampler takes, also where a head's vocabulary is a part of the target's."""
    rows, whole = 64, 49_152
    slots = SlotTable.allocate(rows, 512, 4, device)
    slots.seed.copy_(torch.randint(-(2**62), 2**62, (rows,), generator=rng, device=device))
    slots.temperature[rows // 2 :] = 0.8
    logits = (3 * draw(rng, rows, vocab)).to(dtype)
    token_ids = torch.randperm(whole, generator=rng, device=device)[:vocab].sort().values
    of_slots, positions = torch.randperm(rows, device=device), torch.arange(rows, device=device) * 5
    free = ConstraintTable.allocate(rows, whole, words=64, masks=4, samples=2, device=device)
    ops.draft_sampled(logits, token_ids if vocab < whole else None, of_slots, positions, slots, free)
    every = torch.full((rows, whole), float("-inf"), device=device).index_copy_(1, token_ids, logits.float())
    step = SampleRows(of_slots, positions, SamplingFeatures.TEMPERATURE, None)
    expected = ops.sample(every if vocab < whole else logits, step, slots)
    assert torch.equal(slots.tokens[of_slots, positions], expected.int())


@pytest.mark.xdist_group("logprobs")
@pytest.mark.parametrize("top", [0, 5, 20])
def test_logprobs(top: int, ops: TritonOps, device: torch.device, rng: torch.Generator) -> None:
    logits = 4 * draw(rng, 33, 128_256)
    token_ids = torch.randint(0, 128_256, (33,), generator=rng, device=device)
    actual = ops.logprobs(logits, token_ids, top)
    expected = sampling.logprobs(logits, token_ids, top)
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-5, atol=1e-4)
    # The reference ranks rounded differences to the largest logit, which can make two logits equal.
    assert int((actual[1] - expected[1]).abs().max()) <= 2
    assert torch.equal(actual[2], expected[2])
    torch.testing.assert_close(actual[3], expected[3], rtol=1e-5, atol=1e-4)


def test_a_decode_step_in_a_graph(ops: TritonOps, device: torch.device, rng: torch.Generator) -> None:
    """Gather, rotation, attention and sampling captured once for a bucket, replayed for batches that fit it."""
    rows, queries, vocab, kv_heads, heads, head_dim = 4, 3, 2048, 2, 8, 128
    slots = SlotTable.allocate(8, 512, 32, device)
    slots.tokens.copy_(torch.randint(0, vocab, slots.tokens.shape, generator=rng, device=device))
    slots.block_tables.copy_(torch.randperm(8 * 32, generator=rng, device=device).view(8, 32))
    slots.temperature.fill_(0.8)
    slots.top_p.fill_(0.9)
    caches = draw(rng, 2, 8 * 32, BLOCK_SIZE, kv_heads, head_dim, dtype=torch.bfloat16)
    embedding = draw(rng, vocab, (heads + 2 * kv_heads) * head_dim, dtype=torch.bfloat16)
    output = draw(rng, heads * head_dim, vocab, dtype=torch.bfloat16) / 8
    spec = AttentionSpec(draw(rng, 512, 2, head_dim // 2), head_dim**-0.5)
    bounds = GatherBounds(rows * queries, rows * queries, (queries,) * rows, (512,) * rows, (queries,) * rows)
    row_slots = torch.zeros(rows, dtype=torch.int64, device=device)
    plan = torch.zeros(3 * rows + 2, dtype=torch.int32, device=device)
    features = SamplingFeatures.TEMPERATURE | SamplingFeatures.TOP_P

    def step() -> tuple[Batch, Tensor]:
        inputs = gather_planned(slots, row_slots, plan, bounds, BLOCK_SIZE)
        batch = inputs.batch
        qkv = embedding[batch.token_ids]
        mixed = ops.rope_attention(qkv, batch, LayerCache(caches[0], caches[1]), spec)
        logits = (mixed[batch.logits_index] @ output).float()
        sampled = SampleRows(inputs.slots, inputs.positions, features, None)
        return batch, ops.sample(logits, sampled, slots)

    def prepare(chosen: list[int], query_lens: tuple[int, ...], starts: tuple[int, ...]) -> None:
        row_slots.copy_(torch.tensor(chosen, device=device))
        plan.copy_(torch.tensor(plan_on_host(query_lens, starts, query_lens), dtype=torch.int32, device=device))

    prepare([0, 1, 2, 3], (3, 3, 3, 3), (0, 0, 0, 0))
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, captured = step()
    for chosen, query_lens, starts in [
        ([5, 2, 7, 0], (3, 1, 2, 3), (400, 0, 77, 30)),
        ([1, 0, 0, 0], (2, 0, 0, 0), (15, 0, 0, 0)),
        ([3, 4, 5, 6], (1, 1, 1, 1), (500, 9, 16, 255)),
    ]:
        prepare(chosen, query_lens, starts)
        graph.replay()
        total = sum(query_lens)
        replayed = captured[:total].tolist()
        _, eager = step()
        assert replayed == eager[:total].tolist()
