"""``ReferenceOps``: every operation in plain torch. The CPU path, and the oracle of every other implementation's tests.

It runs on any device. On a CPU each row's result is the same, to the bit, whatever else is in the batch; how, is said
where it takes care.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.kernels import functional, reference_sampling
from draftline.kernels.batch import Batch
from draftline.kernels.reference_attention import AttentionPlan
from draftline.kernels.slots import SampleRows, SlotTable

IntArray = npt.NDArray[np.int64]


def norm_factors(weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm's weight and epsilon as `functional.rms_norm` takes them."""
    size = weight.shape[-1]
    return weight.float() * size**0.5, torch.full((), (size * eps) ** 0.5, device=weight.device)


def rotation(batch: Batch, rope: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The cosines and signed sines of a batch's positions as `functional.rotate` takes them, padded to ``rows``."""
    positions = F.pad(batch.positions, (0, rows - batch.positions.shape[0]))
    cos, sin = rope.index_select(0, positions).unbind(dim=1)
    return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]


def places(cache: Tensor) -> Tensor:
    """A layer's keys or values [num_blocks, block_size, G, D] as [places, G, D]."""
    return cache.view(-1, *cache.shape[2:])


def _ragged(lengths: IntArray) -> tuple[IntArray, IntArray]:
    """For pieces of these lengths, one after the other: each element's piece, and its offset there."""
    piece = np.repeat(np.arange(len(lengths)), lengths)
    return piece, np.arange(len(piece)) - (lengths.cumsum() - lengths)[piece]


class ReferenceOps:
    """`Ops` in plain torch.

    What a batch's layers share (rotations, the attention's plan) is computed by the first of them and remembered until
    the next batch comes. Use one from one thread at a time.

    Activations may have more rows than the batch has tokens: padding, at the end, whose results mean nothing and are
    written nowhere. Keys and values may be of another dtype than the activations.
    """

    scripted = True

    def __init__(self) -> None:
        self._rotation: tuple[Batch, Tensor, tuple[Tensor, Tensor]] | None = None
        self._plan: AttentionPlan | None = None

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See ``Ops.rms_norm``."""
        return functional.rms_norm(x, *norm_factors(weight, eps))

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See ``Ops.add_rms_norm``."""
        residual = residual + x
        return self.rms_norm(residual, weight, eps), residual

    def rope_write_kv(
        self,
        qkv: Tensor,
        batch: Batch,
        rope: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> Tensor:
        """See ``Ops.rope_write_kv``."""
        known = self._rotation
        if known is None or known[0] is not batch or known[1] is not rope:
            known = self._rotation = (batch, rope, rotation(batch, rope, qkv.shape[0]))
        num_kv_heads, head_dim = keys.shape[2:]
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        num_heads = heads.shape[1] - 2 * num_kv_heads
        qk = heads[:, : num_heads + num_kv_heads]
        if norms is not None:
            weights = torch.cat((norms[0].expand(num_heads, -1), norms[1].expand(num_kv_heads, -1)))
            qk = self.rms_norm(qk, weights, eps)
        rotated = functional.rotate(qk, *known[2])
        functional.write_cache(places(keys), batch.cache_index, rotated[:, num_heads:])
        functional.write_cache(places(values), batch.cache_index, heads[:, num_heads + num_kv_heads :])
        return rotated[:, :num_heads]

    def attention(
        self, q: Tensor, keys: Tensor, values: Tensor, batch: Batch, *, scale: float, window: int | None
    ) -> Tensor:
        """See ``Ops.attention``."""
        tokens, num_heads, head_dim = q.shape
        if q.stride(1) != head_dim or q.stride(2) != 1 or q.stride(0) % head_dim:
            q = q.contiguous()
        heads_per_token = q.stride(0) // head_dim
        plan = self._plan
        if plan is None or not plan.serves(batch, tokens, num_heads, heads_per_token, keys):
            plan = self._plan = AttentionPlan(batch, tokens, num_heads, heads_per_token, keys)
        q_heads = q.as_strided(((tokens - 1) * heads_per_token + num_heads, head_dim), (head_dim, 1))
        masks = plan.masks(window, q.dtype)
        results = functional.attend(q_heads, places(keys), places(values), plan.groups, masks, plan.results, scale)
        return results.view(tokens, -1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See ``Ops.silu_mul``."""
        return functional.silu_mul(gate_up)

    def gather(
        self,
        slots: SlotTable,
        rows: Tensor,
        query_lens: tuple[int, ...],
        starts: tuple[int, ...],
        logits_counts: tuple[int, ...],
        block_size: int,
    ) -> Batch:
        """See ``Ops.gather``."""
        device = rows.device
        lengths, first = np.array(query_lens), np.array(starts)
        ends = lengths.cumsum()
        row, offset = _ragged(lengths)
        wanted = np.array(logits_counts)
        of_row, of_wanted = _ragged(wanted)
        positions = torch.from_numpy(first[row] + offset).to(device)
        slot_of_token = rows[torch.from_numpy(row).to(device)]
        block = slots.block_tables[slot_of_token, positions // block_size]
        context_lens = first + lengths
        return Batch(
            token_ids=slots.tokens[slot_of_token, positions].to(torch.int64),
            positions=positions,
            cache_index=block.to(torch.int64).mul_(block_size).add_(positions % block_size),
            query_starts=torch.from_numpy(np.concatenate(([0], ends)).astype(np.int32)).to(device),
            context_lens=torch.from_numpy(context_lens.astype(np.int32)).to(device),
            block_tables=slots.block_tables[rows],
            logits_index=torch.from_numpy((ends - wanted)[of_row] + of_wanted).to(device),
            query_lens_host=query_lens,
            context_lens_host=tuple(context_lens.tolist()),
        )

    def sample(self, logits: Tensor, rows: SampleRows, slots: SlotTable) -> Tensor:
        """See ``Ops.sample``."""
        return reference_sampling.sample(logits, rows, slots)

    def logprobs(self, logits: Tensor, token_ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See ``Ops.logprobs``."""
        return reference_sampling.logprobs(logits, token_ids, top)
