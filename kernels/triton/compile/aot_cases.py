"""The cases of `aot.py`: calls of the operations on meta tensors, with the shapes of real models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, DraftQuery, HistoryParts, LayerCache
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Ops
from draftline.kernels.scaled import GROUP, ScaledWeight
from draftline.kernels.slots import Masks, SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.clock import note_time
from draftline.kernels.triton.collectives import Exchange
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.inbox import PROGRAMS
from draftline.kernels.triton.inputs.gather import gather
from draftline.kernels.triton.ops import TritonOps
from draftline.kernels.triton.pinned import deliver, receive, receive_with_writes, receive_writes

Case = Callable[[Ops], object]

_META = torch.device("meta")
_SMS = {80: 108, 86: 82, 89: 128, 90: 132, 100: 148, 120: 84}
"""Multiprocessors of an A100, RTX 3090, RTX 4090, H200, B200 and RTX 5080."""

OPS: dict[int, Ops] = {
    capability: TritonOps.sized(DeviceLimits.known(capability, num_sms)) for capability, num_sms in _SMS.items()
}
"""The operations by compute capability."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The properties of a model that select its kernels."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int
    qk_norm: bool
    window: int | None


MODELS = {
    "llama-8b": ModelShape(32, 8, 128, 4096, 14336, 128256, False, None),
    "llama-1b": ModelShape(32, 8, 64, 2048, 8192, 128256, False, None),
    "qwen3-0.6b": ModelShape(16, 8, 128, 1024, 3072, 151936, True, None),
    "smollm2-135m": ModelShape(9, 3, 64, 576, 1536, 49152, False, None),
    "mistral-7b": ModelShape(32, 8, 128, 4096, 14336, 32000, False, 4096),
    "phi-2": ModelShape(32, 32, 80, 2560, 10240, 51200, False, None),
    "phi-3-mini": ModelShape(32, 32, 96, 3072, 8192, 32064, False, 2047),
    "gemma-2b": ModelShape(8, 1, 256, 2048, 16384, 256000, False, None),
}
"""Every head size, grouping and option of the kernels."""


ONE_TILE = ModelShape(4, 2, 32, 128, 128, 256, False, None)
"""All channels of a product are one tile."""

GPT2 = ModelShape(12, 12, 64, 768, 3072, 50257, False, None)
GEMMA3 = ModelShape(4, 1, 256, 1152, 6912, 262144, True, 512)
"""Families with their own layers."""

_MAIN = ("llama-8b", "qwen3-0.6b", "smollm2-135m")


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)


def _batch(query_lens: tuple[int, ...], context_lens: tuple[int, ...]) -> Batch:
    tokens, rows = sum(query_lens), len(query_lens)
    return Batch(
        token_ids=_empty(tokens, dtype=torch.int64),
        positions=_empty(tokens, dtype=torch.int64),
        cache_index=_empty(tokens, dtype=torch.int64),
        query_starts=_empty(rows + 1, dtype=torch.int32),
        context_lens=_empty(rows, dtype=torch.int32),
        block_tables=_empty(rows, 256, dtype=torch.int32),
        logits_index=_empty(rows, dtype=torch.int64),
        query_lens_host=query_lens,
        context_lens_host=context_lens,
        longest_first=_empty(rows, dtype=torch.int32),
    )


BATCHES = {
    "one": _batch((1,), (1024,)),
    "decode": _batch((1,) * 4, (1024,) * 4),
    "tens": _batch((1,) * 40, (1024,) * 40),
    "wide": _batch((1,) * 256, (1024,) * 256),
    "two": _batch((2,) * 2, (1024,) * 2),
    "verify": _batch((5,) * 4, (1024,) * 4),
    "chunk": _batch((512,), (2048,)),
    "chunks": _batch((1024,) * 4, (2048,) * 4),
    "mixed": _batch((5, 1, 512), (1024, 1024, 2048)),
    "pair": _batch((*(1,) * 200, 300), (*(1024,) * 200, 2048)),
}
"""One row, a few (split), tens, many (not split), a draft model's first step, verifies, a prompt chunk, many tokens of prompts,
a mix, and one of many rows."""


def _verifies(model: ModelShape) -> Batch:
    """The largest batch of verifies for one launch."""
    rows = 200 // model.num_kv_heads
    return _batch((5,) * rows, (1024,) * rows)


def _uneven(query_len: int, prompt: int = 0, rows: int = 40) -> Batch:
    """So many rows, of which some may have long histories, and one is a prompt of so many tokens if there is any."""
    prompts = (prompt,) if prompt else ()
    parts = 64
    divided = HistoryParts(
        starts=_empty(rows + 1, dtype=torch.int32),
        rows=_empty(parts, dtype=torch.int32),
        length=_empty(1, dtype=torch.int32),
        arrived=_empty(8 * parts, dtype=torch.int32),
    )
    return replace(_batch((*prompts, *[query_len] * (rows - len(prompts))), (4096,) * rows), parts=divided)


def _cache(model: ModelShape, dtype: torch.dtype) -> LayerCache:
    heads = _empty(64, 16, model.num_kv_heads, model.head_dim, dtype=dtype)
    scale = _empty(64, 16, model.num_kv_heads, dtype=torch.float32)
    return LayerCache(heads, heads, (scale, scale) if dtype == torch.int8 else None)


def _attention(ops: Ops, model: ModelShape, batch: Batch, dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    """The part of `models.layers` between two projections."""
    heads = model.num_heads + 2 * model.num_kv_heads
    head_norm = _empty(model.head_dim, dtype=dtype)
    spec = AttentionSpec(
        rope=_empty(4096, 2, model.head_dim // 2, dtype=torch.float32),
        scale=model.head_dim**-0.5,
        window=model.window,
        norms=(head_norm, head_norm) if model.qk_norm else None,
        eps=1e-5,
    )
    qkv = _empty(batch.positions.shape[0], heads * model.head_dim, dtype=dtype)
    ops.rope_attention(qkv, batch, _cache(model, cache_dtype), spec)


def _attention_case(model: ModelShape, batch: Batch, cache_dtype: torch.dtype) -> Case:
    return lambda ops: _attention(ops, model, batch, torch.bfloat16, cache_dtype)


def _layer(ops: Ops, model: ModelShape, batch: Batch, dtype: torch.dtype) -> None:
    """A layer of `models.layers` with dense weights."""
    tokens = batch.positions.shape[0]
    attended = model.num_heads * model.head_dim
    qkv = attended + 2 * model.num_kv_heads * model.head_dim
    hidden, norm = _empty(tokens, model.hidden, dtype=dtype), _empty(model.hidden, dtype=dtype)
    ops.norm_linear(hidden, norm, 1e-5, _empty(qkv, model.hidden, dtype=dtype), None)
    _attention(ops, model, batch, dtype, dtype)
    x = _empty(tokens, attended, dtype=dtype)
    residual = ops.linear_add(x, _empty(model.hidden, attended, dtype=dtype), None, hidden)
    x = ops.norm_swiglu(residual, norm, 1e-5, _empty(2 * model.intermediate, model.hidden, dtype=dtype), None)
    ops.linear_add(x, _empty(model.hidden, model.intermediate, dtype=dtype), None, residual)
    ops.linear(hidden, _empty(model.vocab, model.hidden, dtype=dtype), None)
    ops.add_rms_norm(hidden, hidden, norm, 1e-5)
    ops.rms_norm(hidden, norm, 1e-5)


def _layer_case(model: ModelShape, batch: Batch, dtype: torch.dtype) -> Case:
    return lambda ops: _layer(ops, model, batch, dtype)


def _gpt2_layer(ops: Ops, batch: Batch) -> None:
    """A layer of `models.families.gpt2`."""
    model, tokens = GPT2, batch.positions.shape[0]
    hidden, norm = _empty(tokens, model.hidden), _empty(model.hidden)
    ops.layer_norm(hidden, norm, norm, 1e-5)
    spec = AttentionSpec(_empty(1024, 2, model.head_dim // 2, dtype=torch.float32), model.head_dim**-0.5)
    qkv = ops.linear(hidden, _empty(3 * model.hidden, model.hidden), _empty(3 * model.hidden))
    ops.rope_attention(qkv, batch, _cache(model, torch.bfloat16), spec)
    ops.linear_add(hidden, _empty(model.hidden, model.hidden), norm, hidden)
    ops.gelu(ops.linear(hidden, _empty(model.intermediate, model.hidden), _empty(model.intermediate)))
    inner = _empty(tokens, model.intermediate)
    ops.linear_add(inner, _empty(model.hidden, model.intermediate), norm, hidden)
    ops.linear(hidden, _empty(model.vocab, model.hidden), None)


def _gemma3_layer(ops: Ops, batch: Batch, soft_cap: float) -> None:
    """A layer of `models.families.gemma3`: norms have float32 weights."""
    model, tokens = GEMMA3, batch.positions.shape[0]
    attended = model.num_heads * model.head_dim
    hidden, norm = _empty(tokens, model.hidden), _empty(model.hidden, dtype=torch.float32)
    head_norm = _empty(model.head_dim, dtype=torch.float32)
    spec = AttentionSpec(
        rope=_empty(4096, 2, model.head_dim // 2, dtype=torch.float32),
        scale=0.0625,
        window=model.window,
        soft_cap=soft_cap,
        norms=(head_norm, head_norm),
        eps=1e-6,
    )
    weight = _empty(attended + 2 * model.num_kv_heads * model.head_dim, model.hidden)
    qkv = ops.norm_linear(hidden, norm, 1e-6, weight, None)
    ops.rope_attention(qkv, batch, _cache(model, torch.bfloat16), spec)
    ops.rms_norm_add(ops.linear(_empty(tokens, attended), _empty(model.hidden, attended), None), norm, 1e-6, hidden)
    gate_up = _empty(2 * model.intermediate, model.hidden)
    inner = ops.gelu_mul(ops.norm_linear(hidden, norm, 1e-6, gate_up, None))
    ops.linear(inner, _empty(model.hidden, model.intermediate), None)
    ops.soft_cap(ops.norm_linear(hidden, norm, 1e-6, _empty(model.vocab, model.hidden), None), 30.0)


def _gpt2_case(batch: Batch) -> Case:
    return lambda ops: _gpt2_layer(ops, batch)


def _gemma3_case(batch: Batch, soft_cap: float) -> Case:
    return lambda ops: _gemma3_layer(ops, batch, soft_cap)


def _scaled_layer(ops: Ops, model: ModelShape, tokens: int, dtype: torch.dtype, rows: int, columns: int) -> None:
    """The projections of `models.layers` with quantized weights; ``columns`` 0 means a whole weight row."""

    def weight(n: int, k: int) -> ScaledWeight:
        across = columns or k
        scale = _empty(-(-n // rows), -(-k // across), dtype=torch.float32)
        return ScaledWeight(_empty(n, k, dtype=dtype), scale, rows, across)

    hidden, norm = _empty(tokens, model.hidden), _empty(model.hidden)
    attended = model.num_heads * model.head_dim
    qkv = attended + 2 * model.num_kv_heads * model.head_dim
    ops.scaled_norm_linear(hidden, norm, 1e-5, weight(qkv, model.hidden), None)
    ops.scaled_linear_add(_empty(tokens, attended), weight(model.hidden, attended), None, hidden)
    ops.scaled_norm_swiglu(hidden, norm, 1e-5, weight(2 * model.intermediate, model.hidden), None)
    ops.scaled_linear_add(_empty(tokens, model.intermediate), weight(model.hidden, model.intermediate), None, hidden)
    if dtype == torch.int8 and not columns:  # as the output projection where weights are converted
        ops.scaled_norm_linear(hidden, norm, 1e-5, weight(model.vocab, model.hidden), None)


def _scaled_case(model: ModelShape, tokens: int, dtype: torch.dtype, rows: int, columns: int) -> Case:
    return lambda ops: _scaled_layer(ops, model, tokens, dtype, rows, columns)


def _gather(_: Ops) -> None:
    slots = SlotTable.allocate(256, 8192, 512, _META)
    rows = _empty(4, dtype=torch.int64)
    gather(slots, rows, (1, 5, 300, 1), (10, 20, 0, 7), (1, 5, 1, 1), 16)


def _divide_histories(ops: Ops) -> None:
    for model in ("llama-8b", "smollm2-135m"):  # long ones, and all
        ops.divide_histories(BATCHES["tens"], _cache(MODELS[model], torch.bfloat16))


def _pinned(_: Ops) -> None:
    stages, turn = _empty(4, 700, dtype=torch.int64), _empty(1, dtype=torch.int32)
    receive(stages, turn, _empty(700, dtype=torch.int64))
    receive_writes(stages, turn, _empty(5000, dtype=torch.int32))
    receive_with_writes(stages, turn, _empty(700 - 193, dtype=torch.int64), _empty(5000, dtype=torch.int32))
    tokens, accepted, moments = (
        _empty(64, dtype=torch.int64),
        _empty(32, dtype=torch.int32),
        _empty(4, dtype=torch.int64),
    )
    deliver(tokens, accepted, moments, stages, turn, 640)
    note_time(moments, 0)


def _sample(ops: Ops, model: ModelShape, features: SamplingFeatures, masked: bool) -> None:
    slots = SlotTable.allocate(256, 8192, 512, _META, model.vocab)
    rows = _empty(4, dtype=torch.int64)
    words = _empty(4, -(-model.vocab // 32), dtype=torch.int32)
    masks = Masks(words, _empty(4, dtype=torch.int32)) if masked else None
    ops.sample(_empty(4, model.vocab), SampleRows(rows, rows, features, masks), slots)


def _sample_case(model: ModelShape, features: SamplingFeatures, masked: bool) -> Case:
    return lambda ops: _sample(ops, model, features, masked)


def _speculate(ops: Ops, drafts: int) -> None:
    slots = SlotTable.allocate(256, 8192, 512, _META)
    rows, starts = _empty(4 * (drafts + 1), dtype=torch.int64), _empty(5, dtype=torch.int32)
    ops.draft_ngram(rows, drafts, 4, slots)
    ops.draft_ngram(rows, drafts, 4, slots, least=2)
    ngrams = _empty(1 << 20, 2, dtype=torch.int32)
    ops.learn_ngrams(rows, drafts + 1, ngrams, slots)
    ops.draft_ngram_table(rows, drafts, 4, ngrams, slots)
    ops.accept(rows, SampleRows(rows, rows, SamplingFeatures.NONE, None), starts, drafts + 1, slots)
    if drafts:
        ops.gather_drafts(slots, rows, starts, DraftQuery(2, 0), drafts, 16)
        ops.gather_drafts(slots, rows, starts, DraftQuery(drafts + 1, 1), drafts, 16)
    if drafts > 1:
        ops.gather_drafts(slots, rows, starts, DraftQuery(drafts + 1, 1, drafts - 1, 128_256), 1, 16)


def _constrain(ops: Ops, model: ModelShape) -> None:
    slots = SlotTable.allocate(256, 8192, 512, _META)
    constraints = ConstraintTable.allocate(256, model.vocab, words=1 << 20, masks=1024, samples=5, device=_META)
    tokens, starts = _empty(4 * 5, dtype=torch.int64), _empty(5, dtype=torch.int32)
    rows = SampleRows(tokens, tokens, SamplingFeatures.MASK, None)
    sample_constraints = ops.constrain(rows, starts, slots, constraints)
    ops.advance_constraints(tokens, _empty(4, dtype=torch.int32), rows, starts, sample_constraints, constraints)
    ops.draft_forced(tokens, 4, slots, constraints)


def _draft(ops: Ops, model: ModelShape, *, mapped: bool) -> None:
    slots = SlotTable.allocate(256, 8192, 512, _META)
    rows = _empty(4, dtype=torch.int64)
    vocab = 32_000 if mapped else model.vocab
    constraints = ConstraintTable.allocate(256, model.vocab, words=1 << 20, masks=1024, samples=5, device=_META)
    token_ids = _empty(vocab, dtype=torch.int64) if mapped else None
    for inputs in (None, *ops.gather_drafts(slots, rows, rows.int(), DraftQuery(2, 0), 1, 16)):
        ops.draft_sampled(_empty(4, vocab), token_ids, rows, rows, slots, constraints, inputs)
    hidden, norm = _empty(4, model.hidden), _empty(model.hidden)
    ops.joined_norms(_empty(model.vocab, model.hidden), rows, norm, hidden, norm, 1e-5)
    ops.put_rows(ops.take_rows(hidden, rows), rows, hidden)
    ops.copy_rows(hidden, _empty(4, 3, model.hidden)[:, 1])


def _logprobs(ops: Ops, model: ModelShape, top: int) -> None:
    ops.logprobs(_empty(4, model.vocab), _empty(4, dtype=torch.int64), top)


def _exchange(_: Ops) -> None:
    """What two ranks exchange, for one row and for a prompt, without overlap."""
    limits = DeviceLimits.known(80, _SMS[80])
    exchange = Exchange(_empty(2, dtype=torch.int64), _empty(PROGRAMS, dtype=torch.int32), 1, 2, limits)
    bias, starts = _empty(4096), _empty(3, dtype=torch.int32)
    for rows in (1, 64, 512):
        partial = _empty(rows, 4096)
        exchange.sum_add(partial, None, partial)
        exchange.sum_add(partial, bias, partial)
        exchange.sum_add(partial, None, None)
        exchange.join(_empty(rows, 64128), starts, [64128, 64128])
    exchange.spread(_empty(5, dtype=torch.int64))


FEATURES = {
    "common": (SamplingFeatures.NONE, False),
    "masked": (SamplingFeatures.NONE, True),
    "min-tokens": (SamplingFeatures.MIN_TOKENS, False),
    "allowed-ids": (SamplingFeatures.ALLOWED_IDS, False),
    "everything": (~SamplingFeatures.NONE, True),
}
"""Combinations of features, and whether rows have a mask."""

_SCALED = {
    "fp8": (torch.float8_e4m3fn, 1, 0),
    "fp8-block": (torch.float8_e4m3fn, GROUP, GROUP),
    "int8": (torch.int8, 1, 0),
    "int8-block": (torch.int8, GROUP, GROUP),
}
"""Type, and weight rows and columns with one scale, of the eight-bit formats."""

CASES: dict[str, Case] = {
    **{
        f"{name}-{kind}": _layer_case(model, batch, torch.bfloat16)
        for name, model in MODELS.items()
        for kind, batch in BATCHES.items()
        if name in _MAIN or kind in ("decode", "chunk")
    },
    **{f"{name}-verifies": _layer_case(model, _verifies(model), torch.bfloat16) for name, model in MODELS.items()},
    "one-tile": _layer_case(ONE_TILE, BATCHES["one"], torch.bfloat16),
    "float16": _layer_case(MODELS["llama-1b"], BATCHES["decode"], torch.float16),
    "float32-decode": _layer_case(MODELS["llama-8b"], BATCHES["decode"], torch.float32),
    "float32-verifies": _layer_case(MODELS["llama-1b"], _verifies(MODELS["llama-1b"]), torch.float32),
    "float32-chunk": _layer_case(MODELS["llama-8b"], BATCHES["chunk"], torch.float32),
    "float32-wide-heads": lambda ops: _attention(ops, GEMMA3, BATCHES["mixed"], torch.float32, torch.float32),
    **{f"gpt2-{kind}": _gpt2_case(BATCHES[kind]) for kind in ("one", "decode", "chunk")},
    **{f"gemma-3-{kind}": _gemma3_case(BATCHES[kind], 0.0) for kind in ("one", "decode", "chunk")},
    **{f"gemma-3-{kind}-capped": _gemma3_case(BATCHES[kind], 50.0) for kind in ("decode", "chunk")},
    **{
        f"{name}-{kind}-{tokens}": _scaled_case(MODELS[name], tokens, *layout)
        for name in ("llama-8b", "smollm2-135m")
        for kind, layout in _SCALED.items()
        for tokens in (1, 4, 40, 512)
    },
    **{
        f"{name}-uneven-{query_len}{kind}": _attention_case(MODELS[name], _uneven(query_len, prompt), torch.bfloat16)
        for name in _MAIN
        for query_len in (1, 5)
        for kind, prompt in (("", 0), ("-mixed", 300))
    },
    "smollm2-135m-uneven-few": _attention_case(MODELS["smollm2-135m"], _uneven(1, rows=8), torch.bfloat16),
    "llama-8b-fp8-cache-uneven": _attention_case(MODELS["llama-8b"], _uneven(1), torch.float8_e4m3fn),
    "divide-histories": _divide_histories,
    **{
        f"{name}-{kind}-cache-{rows}": _attention_case(MODELS[name], BATCHES[rows], cache_dtype)
        for name in ("llama-8b", "qwen3-0.6b", "phi-2", "mistral-7b")
        for kind, cache_dtype in (("fp8", torch.float8_e4m3fn), ("int8", torch.int8))
        for rows in ("one", "decode", "wide", "verify", "chunk", "mixed")
    },
    "exchange": _exchange,
    "gather": _gather,
    "pinned": _pinned,
    **{
        f"sample-{name}": _sample_case(MODELS["llama-8b"], features, masked)
        for name, (features, masked) in FEATURES.items()
    },
    "speculation-1": lambda ops: _speculate(ops, 1),
    "speculation-4": lambda ops: _speculate(ops, 4),
    "draft": lambda ops: _draft(ops, MODELS["llama-8b"], mapped=False),
    "draft-mapped": lambda ops: _draft(ops, MODELS["smollm2-135m"], mapped=True),
    "constrain": lambda ops: _constrain(ops, MODELS["llama-8b"]),
    "logprobs": lambda ops: _logprobs(ops, MODELS["llama-8b"], 0),
    "logprobs-top": lambda ops: _logprobs(ops, MODELS["qwen3-0.6b"], 20),
}
"""Case name to the calls, of any operations, whose launches are compiled."""
