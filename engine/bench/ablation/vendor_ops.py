"""The GPU's operations without some of its kernels: the vendor's products, and the reference's attention."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from torch import Tensor
from torch.nn.functional import linear
from typing_extensions import override

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.ops import TritonOps


@dataclass(frozen=True, slots=True)
class VendorOps(TritonOps):
    """Nothing fused, nothing overlapped, and every dense product from the vendor's library."""

    @override
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, weight, bias)

    @override
    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
        return linear(self.rms_norm(x, norm, eps), weight, bias)

    @override
    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.silu_mul(self.norm_linear(x, norm, eps, weight, bias))

    @override
    def linear_add(self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
        return residual.add_(linear(x, weight, bias))

    @override
    def rope_attention(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        return self.attention(self.rope_write_kv(qkv, batch, cache, spec), batch, cache, spec)


class UnpaddedBatches:
    """Batches as torch's attention takes them, which knows no padding: each is made once for all layers."""

    def __init__(self) -> None:
        self._padded: Batch | None = None
        self._unpadded: Batch | None = None

    def of(self, batch: Batch) -> Batch:
        """The batch without the tokens at its end that belong to no row, with the lengths that the device has."""
        if self._padded is not batch or self._unpadded is None:
            starts = batch.query_starts.tolist()
            self._padded = batch
            self._unpadded = replace(
                batch,
                token_ids=batch.token_ids[: starts[-1]],
                positions=batch.positions[: starts[-1]],
                cache_index=batch.cache_index[: starts[-1]],
                query_lens_host=tuple(end - start for start, end in pairwise(starts)),
                context_lens_host=tuple(batch.context_lens.tolist()),
            )
        return self._unpadded


@dataclass(frozen=True, slots=True)
class ReferenceAttentionOps(TritonOps):
    """Rotation, cache and attention by torch. It asks the device for lengths, so no graph can hold it.

    Attributes:
        reference: torch's operations.
        batches: the batches that these take.
    """

    reference: ReferenceOps = field(default_factory=ReferenceOps)
    batches: UnpaddedBatches = field(default_factory=UnpaddedBatches)

    @override
    def rope_write_kv(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        return self.reference.rope_write_kv(qkv, self.batches.of(batch), cache, spec)

    @override
    def attention(self, q: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        return self.reference.attention(q, self.batches.of(batch), cache, spec)

    @override
    def rope_attention(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        return self.reference.rope_attention(qkv, self.batches.of(batch), cache, spec)
