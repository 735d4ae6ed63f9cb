"""``ReferenceOps``: every operation in plain torch. The CPU path, and the oracle of every other implementation's tests.

It runs on any device. On a CPU each row's result has the same bits whatever else is in the batch; comments say where
that takes care.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, DraftQuery, Inputs, LayerCache
from draftline.kernels.constraints import ConstraintTable, SampleConstraints
from draftline.kernels.ops import Ops
from draftline.kernels.reference import functional, functional_step, sampling
from draftline.kernels.reference.accept import accept
from draftline.kernels.reference.attention import group_rows
from draftline.kernels.reference.attention_sizes import AttentionSizes, attention_sizes
from draftline.kernels.reference.constraints import advance_constraints, constrain, draft_forced
from draftline.kernels.reference.draft import draft_sampled
from draftline.kernels.reference.functional_step import HeadShape
from draftline.kernels.reference.inputs import gather, gather_drafts
from draftline.kernels.reference.ngram import draft_ngram, draft_ngram_table, learn_ngrams
from draftline.kernels.scaled import ScaledWeight, scaled_product
from draftline.kernels.slots import SampleRows, SlotTable


def norm_factors(weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm's weight and epsilon as `functional.rms_norm` takes them."""
    size = weight.shape[-1]
    return weight.float() * size**0.5, torch.full((), size * eps, device=weight.device)


class _BatchAttention:
    """The arguments of `functional.attend` for one batch and layers of one shape, made once."""

    def __init__(self, batch: Batch, tokens: int, heads: HeadShape, sizes: AttentionSizes, keys: Tensor) -> None:
        self._made_for = (tokens, heads, sizes, keys.shape)
        self._batch = batch
        num_blocks, block_size = keys.shape[:2]
        shapes = group_rows(batch, heads.queries // heads.keys, sizes, num_blocks, block_size)
        self.groups = [
            functional_step.make_group(shape, batch.block_tables, block_size, heads, keys) for shape in shapes
        ]
        self.results = functional_step.result_index(self.groups, tokens, heads)
        self._masks: dict[int | None, list[Tensor]] = {}
        self._dtype = sizes.dtype

    def serves(self, batch: Batch, tokens: int, heads: HeadShape, sizes: AttentionSizes, keys: Tensor) -> bool:
        """Whether it was made for this very batch, with these sizes."""
        return self._batch is batch and self._made_for == (tokens, heads, sizes, keys.shape)

    def masks(self, window: int | None) -> list[Tensor]:
        """Each group's mask."""
        masks = self._masks.get(window)
        if masks is None:
            masks = self._masks[window] = [
                functional_step.mask(group, window or 0, self._dtype) for group in self.groups
            ]
        return masks


class _Norm(NamedTuple):
    """An RMSNorm's `norm_factors`, and what they were made of."""

    weight: Tensor
    eps: float
    factors: tuple[Tensor, Tensor]


_MAX_NORMS = 1024
"""Norms whose factors are kept: more than a model has."""


def flat_cache(cache: Tensor) -> Tensor:
    """A layer's keys or values [num_blocks, block_size, G, D], or their scales without D, as [entries, G, D]."""
    return cache.view(-1, *cache.shape[2:])


def flat_scales(scales: tuple[Tensor, Tensor] | None) -> tuple[Tensor | None, Tensor | None]:
    """A layer's scales of keys and values as [entries, G]; None where the cache has none."""
    return (None, None) if scales is None else (flat_cache(scales[0]), flat_cache(scales[1]))


class ReferenceOps(Ops):
    """`Ops` in plain torch.

    A batch's first layer computes what all share (rotations, the attention's indices and masks); the next batch
    replaces it. Use one from one thread at a time.

    Activations may have more rows than the batch has tokens: padding at the end, whose results are undefined and are
    not written to the cache. Keys and values may have another dtype than the activations.
    """

    scripted = True
    # Eight-bit weights would be dequantized again for every product.
    runs_scaled = False

    def __init__(self) -> None:
        self._rotations: list[tuple[Batch, Tensor, tuple[Tensor, Tensor]]] = []
        self._attention: _BatchAttention | None = None
        self._norms: dict[int, _Norm] = {}

    @override
    def settle(self) -> bool:
        return False

    @override
    def launch_alternatives(self) -> None:
        pass

    @override
    def take_rows(self, table: Tensor, index: Tensor) -> Tensor:
        return table[index]

    @override
    def put_rows(self, rows: Tensor, index: Tensor, table: Tensor) -> None:
        table[index] = rows

    @override
    def copy_rows(self, rows: Tensor, out: Tensor) -> None:
        out.copy_(rows)

    @override
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        known = self._norms.get(id(weight))
        if known is None or known.weight is not weight or known.eps != eps:
            if len(self._norms) == _MAX_NORMS:
                self._norms.clear()
            known = self._norms[id(weight)] = _Norm(weight, eps, norm_factors(weight, eps))
        return functional.rms_norm(x, *known.factors)

    @override
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        residual = residual + x
        return self.rms_norm(residual, weight, eps), residual

    @override
    def rms_norm_add(self, x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> Tensor:
        return residual + self.rms_norm(x, weight, eps)

    @override
    def joined_norms(
        self, table: Tensor, token_ids: Tensor, table_norm: Tensor, hidden: Tensor, hidden_norm: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        vectors = F.embedding(token_ids, table).to(hidden.dtype)
        normed = self.rms_norm(hidden, hidden_norm, eps)
        return torch.cat((self.rms_norm(vectors, table_norm, eps), normed), dim=1), normed

    @override
    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)

    @override
    def rope_write_kv(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        rotation = self._rotation(batch, spec.rope, qkv.shape[0])
        num_kv_heads, head_dim = cache.keys.shape[2:]
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        num_heads = heads.shape[1] - 2 * num_kv_heads
        qk = heads[:, : num_heads + num_kv_heads]
        if spec.norms is not None:
            query_norm, key_norm = spec.norms
            weights = torch.cat((query_norm.expand(num_heads, -1), key_norm.expand(num_kv_heads, -1)))
            qk = functional.rms_norm(qk, *norm_factors(weights, spec.eps))
        rotated = functional.rotate(qk, *rotation)
        new_values = heads[:, num_heads + num_kv_heads :]
        key_scales, value_scales = flat_scales(cache.scales)
        functional.write_cache(flat_cache(cache.keys), key_scales, batch.cache_index, rotated[:, num_heads:])
        functional.write_cache(flat_cache(cache.values), value_scales, batch.cache_index, new_values)
        return rotated[:, :num_heads]

    @override
    def attention(self, q: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        tokens, num_heads, head_dim = q.shape
        if q.stride(1) != head_dim or q.stride(2) != 1 or q.stride(0) % head_dim:
            q = q.contiguous()
        heads = HeadShape(num_heads, q.stride(0) // head_dim, cache.keys.shape[2], head_dim)
        known = self._attention
        sizes = attention_sizes(head_dim, q.dtype, q.device)
        if known is None or not known.serves(batch, tokens, heads, sizes, cache.keys):
            known = self._attention = _BatchAttention(batch, tokens, heads, sizes, cache.keys)
        q_heads = q.as_strided(((tokens - 1) * heads.queries_apart + num_heads, head_dim), (head_dim, 1))
        masks = known.masks(spec.window)
        results = functional.attend(
            q_heads, flat_cache(cache.keys), flat_cache(cache.values), *flat_scales(cache.scales),
            known.groups, masks, known.results, spec.scale, spec.soft_cap,
        )  # fmt: skip
        return results.view(tokens, -1)

    @override
    def rope_attention(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        return self.attention(self.rope_write_kv(qkv, batch, cache, spec), batch, cache, spec)

    @override
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return functional.silu_mul(gate_up)

    @override
    def gelu(self, x: Tensor) -> Tensor:
        return functional.gelu(x)

    @override
    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.gelu(gate).mul_(up)

    @override
    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return functional.soft_cap(x, cap)

    @override
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    @override
    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(self.rms_norm(x, norm, eps), weight, bias)

    @override
    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.silu_mul(self.norm_linear(x, norm, eps, weight, bias))

    @override
    def linear_add(self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
        return residual + F.linear(x, weight, bias)

    def _rotation(self, batch: Batch, rope: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """The batch's `functional_step.rotation`, padded to ``rows``; made once for each table."""
        self._rotations = [known for known in self._rotations if known[0] is batch]
        for _, table, rotation in self._rotations:
            if table is rope:
                return rotation
        rotation = functional_step.rotation(rope, F.pad(batch.positions, (0, rows - batch.positions.shape[0])))
        self._rotations.append((batch, rope, rotation))
        return rotation

    @override
    def scaled_linear(self, x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
        product = scaled_product(x, weight)
        return (product if bias is None else product + bias).to(x.dtype)

    @override
    def scaled_norm_linear(
        self, x: Tensor, norm: Tensor, eps: float, weight: ScaledWeight, bias: Tensor | None
    ) -> Tensor:
        return self.scaled_linear(self.rms_norm(x, norm, eps), weight, bias)

    @override
    def scaled_norm_swiglu(
        self, x: Tensor, norm: Tensor, eps: float, weight: ScaledWeight, bias: Tensor | None
    ) -> Tensor:
        return self.silu_mul(self.scaled_norm_linear(x, norm, eps, weight, bias))

    @override
    def scaled_linear_add(self, x: Tensor, weight: ScaledWeight, bias: Tensor | None, residual: Tensor) -> Tensor:
        return residual + self.scaled_linear(x, weight, bias)

    @override
    def gather(
        self,
        table: SlotTable,
        slots: Tensor,
        query_lens: tuple[int, ...],
        starts: tuple[int, ...],
        logits_counts: tuple[int, ...],
        block_size: int,
        from_newest: tuple[bool, ...] = (),
    ) -> Inputs:
        return gather(table, slots, query_lens, starts, logits_counts, block_size, from_newest)

    @override
    def sample(self, logits: Tensor, rows: SampleRows, table: SlotTable) -> Tensor:
        return sampling.sample(logits.to(torch.float32), rows, table)

    @override
    def accept(self, tokens: Tensor, rows: SampleRows, starts: Tensor, max_samples: int, table: SlotTable) -> Tensor:
        return accept(tokens, rows, starts, max_samples, table)

    @override
    def constrain(
        self, rows: SampleRows, starts: Tensor, table: SlotTable, constraints: ConstraintTable
    ) -> SampleConstraints:
        return constrain(rows, starts, table, constraints)

    @override
    def advance_constraints(
        self,
        tokens: Tensor,
        accepted: Tensor,
        rows: SampleRows,
        starts: Tensor,
        sample_constraints: SampleConstraints,
        constraints: ConstraintTable,
    ) -> None:
        advance_constraints(tokens, accepted, rows, starts, sample_constraints, constraints)

    @override
    def draft_forced(self, slots: Tensor, count: int, table: SlotTable, constraints: ConstraintTable) -> None:
        draft_forced(slots, count, table, constraints)

    @override
    def draft_ngram(self, slots: Tensor, count: int, max_ngram: int, table: SlotTable, least: int = 0) -> None:
        draft_ngram(slots, count, max_ngram, table, least)

    @override
    def learn_ngrams(self, slots: Tensor, count: int, ngrams: Tensor, table: SlotTable) -> None:
        learn_ngrams(slots, count, ngrams, table)

    @override
    def draft_ngram_table(self, slots: Tensor, count: int, max_ngram: int, ngrams: Tensor, table: SlotTable) -> None:
        draft_ngram_table(slots, count, max_ngram, ngrams, table)

    @override
    def gather_drafts(
        self, table: SlotTable, slots: Tensor, drafts: Tensor, query: DraftQuery, passes: int, block_size: int
    ) -> tuple[Inputs, ...]:
        return gather_drafts(table, slots, drafts, query, passes, block_size)

    @override
    def draft_sampled(
        self,
        logits: Tensor,
        token_ids: Tensor | None,
        slots: Tensor,
        positions: Tensor,
        table: SlotTable,
        constraints: ConstraintTable,
        following: Inputs | None = None,
    ) -> None:
        draft_sampled(logits, token_ids, slots, positions, table, constraints, following)

    @override
    def note_time(self, moments: Tensor, index: int) -> None:
        moments[index] = time.monotonic_ns()

    @override
    def logprobs(self, logits: Tensor, token_ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return sampling.logprobs(logits.to(torch.float32), token_ids, top)


class PlainOps(ReferenceOps):
    """`ReferenceOps` whose decoders are no TorchScript program on a CPU either: each operation is a call of its own."""

    scripted = False
