"""The GPU's operations without some of its kernels: products from the vendor's library, attention from torch's reference."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class ReferenceAttentionOps(TritonOps):
    """Rotation, cache and attention by torch. It asks the device for lengths, so no graph can hold it.

    Attributes:
        reference: torch's operations.
    """

    reference: ReferenceOps = field(default_factory=ReferenceOps)

    @override
    def rope_write_kv(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        return self.reference.rope_write_kv(qkv, batch, cache, spec)

    @override
    def attention(self, q: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        return self.reference.attention(q, batch, cache, spec)

    @override
    def rope_attention(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        return self.reference.rope_attention(qkv, batch, cache, spec)
