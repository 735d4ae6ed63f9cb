"""The device operations as Triton kernels, one operation a file, for NVIDIA GPUs from sm_80 on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import torch
import triton
from torch import Tensor
from typing_extensions import override

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, DraftQuery, Inputs, LayerCache
from draftline.kernels.constraints import ConstraintTable, SampleConstraints
from draftline.kernels.ops import AreUneven, Ops
from draftline.kernels.scaled import ScaledWeight
from draftline.kernels.slots import SampleRows, SlotTable
from draftline.kernels.triton.attention.decode import decode_attention
from draftline.kernels.triton.attention.decode_plan import plan_decode
from draftline.kernels.triton.attention.parts_plan import is_uneven, plan_uneven
from draftline.kernels.triton.attention.plan import AttentionShape
from draftline.kernels.triton.attention.ragged import attention
from draftline.kernels.triton.attention.rope import rope_write_kv
from draftline.kernels.triton.attention.soft_cap import soft_cap
from draftline.kernels.triton.clock import note_time
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.inputs.gather import gather
from draftline.kernels.triton.inputs.gather_drafts import gather_drafts
from draftline.kernels.triton.inputs.history_parts import divide_histories
from draftline.kernels.triton.inputs.move_rows import copy_rows, put_rows, take_rows
from draftline.kernels.triton.inputs.ngram import draft_ngram
from draftline.kernels.triton.inputs.ngram_table import draft_ngram_table, learn_ngrams
from draftline.kernels.triton.linear.dense import DenseKernels
from draftline.kernels.triton.linear.scaled import scaled_linear
from draftline.kernels.triton.linear.vendor import VendorProducts
from draftline.kernels.triton.overlap import overlaps
from draftline.kernels.triton.pointwise.activations import gelu, gelu_mul, silu_mul
from draftline.kernels.triton.pointwise.norms import add_rms_norm, joined_norms, layer_norm, rms_norm, rms_norm_add
from draftline.kernels.triton.sampling.accept import accept
from draftline.kernels.triton.sampling.constraints import advance_constraints, constrain, draft_forced
from draftline.kernels.triton.sampling.draft import draft_sampled
from draftline.kernels.triton.sampling.logprobs import logprobs
from draftline.kernels.triton.sampling.sample import sample


@dataclass(frozen=True, slots=True)
class TritonOps(Ops):
    """``Ops`` by Triton kernels. No operation waits for the device. Use one from one stream at a time.

    Attributes:
        limits: the device's, which size launches.
        dense: the dense linear layers.
    """

    limits: DeviceLimits
    dense: DenseKernels

    scripted: ClassVar[bool] = False
    runs_scaled: ClassVar[bool] = True

    @staticmethod
    def for_device(device: torch.device) -> TritonOps:
        """The operations sized for one CUDA device."""
        limits = DeviceLimits.of(device)
        vendor = VendorProducts(device, Path(triton.knobs.cache.dir), limits)
        return TritonOps.sized(limits, vendor)

    @classmethod
    def sized(cls, limits: DeviceLimits, vendor: VendorProducts | None = None) -> Self:
        """The operations for a device with these limits, with the vendor's products or without."""
        return cls(limits, DenseKernels(limits, vendor))

    @override
    def settle(self) -> bool:
        return self.dense.settle()

    @override
    def launch_alternatives(self) -> None:
        self.dense.launch_alternatives()

    @override
    def take_rows(self, table: Tensor, index: Tensor) -> Tensor:
        return take_rows(table, index, overlap=overlaps(index, self.limits))

    @override
    def put_rows(self, rows: Tensor, index: Tensor, table: Tensor) -> None:
        put_rows(rows, index, table, overlap=overlaps(rows, self.limits))

    @override
    def copy_rows(self, rows: Tensor, out: Tensor) -> None:
        copy_rows(rows, out, overlap=overlaps(rows, self.limits))

    @override
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight, eps, overlap=overlaps(x, self.limits))

    @override
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, eps, overlap=overlaps(x, self.limits))

    @override
    def rms_norm_add(self, x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> Tensor:
        return rms_norm_add(x, weight, eps, residual, overlap=overlaps(x, self.limits))

    @override
    def joined_norms(
        self, table: Tensor, token_ids: Tensor, table_norm: Tensor, hidden: Tensor, hidden_norm: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        overlap = overlaps(hidden, self.limits)
        return joined_norms(table, token_ids, table_norm, hidden, hidden_norm, eps, overlap=overlap)

    @override
    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return layer_norm(x, weight, bias, eps, overlap=overlaps(x, self.limits))

    @override
    def rope_write_kv(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        return rope_write_kv(qkv, batch, cache, spec, overlap=overlaps(qkv, self.limits))

    @override
    def attention(self, q: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        return attention(q, batch, cache, spec, limits=self.limits, overlap=overlaps(q, self.limits))

    @override
    def rope_attention(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        # Decodes and verifies run in one or two launches; batches with prompts rotate and write keys in their own.
        num_kv_heads, head_dim = cache.keys.shape[2:]
        group = qkv.shape[1] // head_dim // num_kv_heads - 2
        shape = AttentionShape.of(group, qkv, cache, self.limits)
        overlap = overlaps(qkv, self.limits)
        # Windows leave no long histories.
        plans = plan_decode if batch.parts is None or spec.window is not None else plan_uneven
        plan = plans(shape, batch.query_lens_host, batch.context_lens_host)
        if plan is None:
            queries = rope_write_kv(qkv, batch, cache, spec, first_head=group * num_kv_heads, overlap=overlap)
            return attention(queries, batch, cache, spec, limits=self.limits, own=qkv, overlap=overlap)
        return decode_attention(qkv, batch, cache, spec, plan=plan, overlap=overlap)

    @override
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up, overlap=overlaps(gate_up, self.limits))

    @override
    def gelu(self, x: Tensor) -> Tensor:
        return gelu(x, overlap=overlaps(x, self.limits))

    @override
    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return gelu_mul(gate_up, overlap=overlaps(gate_up, self.limits))

    @override
    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return soft_cap(x, cap, overlap=overlaps(x, self.limits))

    @override
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.dense.linear(x, weight, bias)

    @override
    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.dense.linear(x, weight, bias, norm=(norm, eps))

    @override
    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.dense.norm_swiglu(x, (norm, eps), weight, bias)

    @override
    def linear_add(self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
        return self.dense.linear(x, weight, bias, residual=residual)

    @override
    def scaled_linear(self, x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
        return scaled_linear(x, weight, bias, limits=self.limits)

    @override
    def scaled_norm_linear(
        self, x: Tensor, norm: Tensor, eps: float, weight: ScaledWeight, bias: Tensor | None
    ) -> Tensor:
        return scaled_linear(x, weight, bias, norm=(norm, eps), limits=self.limits)

    @override
    def scaled_norm_swiglu(
        self, x: Tensor, norm: Tensor, eps: float, weight: ScaledWeight, bias: Tensor | None
    ) -> Tensor:
        return scaled_linear(x, weight, bias, norm=(norm, eps), swiglu=True, limits=self.limits)

    @override
    def scaled_linear_add(self, x: Tensor, weight: ScaledWeight, bias: Tensor | None, residual: Tensor) -> Tensor:
        return scaled_linear(x, weight, bias, residual=residual, limits=self.limits)

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
    def uneven_rule(self, bound: int, heads: tuple[int, int], cache: LayerCache) -> AreUneven:
        shape = replace(AttentionShape.of(heads[0] // heads[1], cache.keys, cache, self.limits), num_kv_heads=heads[1])
        return partial(is_uneven, shape, bound=bound)

    @override
    def divide_histories(self, batch: Batch, cache: LayerCache, ahead: int = 0) -> Batch:
        kv_heads, head_dim = cache.keys.shape[2:]
        return divide_histories(batch, kv_heads, head_dim, self.limits, ahead)

    @override
    def sample(self, logits: Tensor, rows: SampleRows, table: SlotTable) -> Tensor:
        return sample(logits, rows, table)

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
        return gather_drafts(table, slots, drafts, query, passes, block_size, overlap=overlaps(slots, self.limits))

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
        overlap = overlaps(logits, self.limits)
        draft_sampled(logits, token_ids, slots, positions, table, constraints, following, overlap=overlap)

    @override
    def note_time(self, moments: Tensor, index: int) -> None:
        note_time(moments, index)

    @override
    def logprobs(self, logits: Tensor, token_ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return logprobs(logits, token_ids, top)
