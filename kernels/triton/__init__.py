"""The device operations as Triton kernels, one operation a file, for NVIDIA GPUs from sm_80 on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from draftline.kernels.batch import Batch
from draftline.kernels.slots import SampleRows, SlotTable
from draftline.kernels.triton.attention import attention
from draftline.kernels.triton.commit import commit
from draftline.kernels.triton.gather import gather
from draftline.kernels.triton.logprobs import logprobs
from draftline.kernels.triton.norm import add_rms_norm, rms_norm
from draftline.kernels.triton.rope import rope_write_kv
from draftline.kernels.triton.sample import sample
from draftline.kernels.triton.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class TritonOps:
    """``Ops`` by Triton kernels. No operation waits for the device.

    Attributes:
        num_sms: the device's multiprocessors, which sizes launches.
    """

    num_sms: int

    scripted: ClassVar[bool] = False

    @staticmethod
    def for_device(device: torch.device) -> TritonOps:
        """The operations sized for one CUDA device."""
        return TritonOps(torch.cuda.get_device_properties(device).multi_processor_count)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See ``Ops.rms_norm``."""
        return rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See ``Ops.add_rms_norm``."""
        return add_rms_norm(x, residual, weight, eps)

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
        return rope_write_kv(qkv, batch, rope, keys, values, norms, eps)

    def attention(
        self, q: Tensor, keys: Tensor, values: Tensor, batch: Batch, *, scale: float, window: int | None
    ) -> Tensor:
        """See ``Ops.attention``."""
        return attention(q, keys, values, batch, scale=scale, window=window, num_sms=self.num_sms)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See ``Ops.silu_mul``."""
        return silu_mul(gate_up)

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
        return gather(slots, rows, query_lens, starts, logits_counts, block_size)

    def sample(self, logits: Tensor, rows: SampleRows, slots: SlotTable) -> Tensor:
        """See ``Ops.sample``."""
        return sample(logits, rows, slots)

    def commit(self, tokens: Tensor, rows: SampleRows, slots: SlotTable) -> None:
        """See ``Ops.commit``."""
        commit(tokens, rows, slots)

    def logprobs(self, logits: Tensor, token_ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See ``Ops.logprobs``."""
        return logprobs(logits, token_ids, top)
