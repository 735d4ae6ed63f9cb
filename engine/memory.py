"""How many cache blocks fit: a fixed budget on the CPU, what the weights and a full step leave on a GPU."""

from __future__ import annotations

import torch

from draftline.models.config import ModelConfig

GIB = 1 << 30
DEFAULT_CPU_CACHE_GIB = 1.0


class OutOfMemoryAtStartError(RuntimeError):
    """The cache would be too small to serve anything; the message has the numbers."""


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one cache block: keys and values of ``block_size`` tokens in every layer."""
    return 2 * config.num_layers * block_size * config.num_kv_heads * config.head_dim * dtype.itemsize


def gpu_cache_bytes(device: torch.device, utilization: float, peak_bytes: int) -> int:
    """What is left for the cache of the share of a GPU's memory that this process may use.

    Args:
        device: the GPU.
        utilization: the share of its memory, 0 to 1, that weights, activations and cache may take together.
        peak_bytes: the most that weights and activations took in the largest step.
    """
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    left = int(total * utilization) - others - peak_bytes
    if left <= 0:
        raise OutOfMemoryAtStartError(
            f"{device} has {total / GIB:.1f} GiB, of which gpu_memory_utilization {utilization} allows "
            f"{total * utilization / GIB:.1f}. The weights and a full step take {peak_bytes / GIB:.1f} and other processes "
            f"{others / GIB:.1f}, so nothing is left for the cache. Raise gpu_memory_utilization, or lower "
            "max_batched_tokens or max_num_seqs."
        )
    return left


def cache_blocks(budget_bytes: int, bytes_a_block: int, block_size: int, max_model_len: int | None) -> int:
    """How many blocks a budget holds.

    Raises:
        OutOfMemoryAtStartError: not even one sequence of ``max_model_len`` (or one block) fits.
    """
    blocks = budget_bytes // bytes_a_block
    wanted = 1 if max_model_len is None else -(-max_model_len // block_size)
    if blocks < wanted:
        raise OutOfMemoryAtStartError(
            f"the cache has room for {blocks * block_size} tokens ({budget_bytes / GIB:.2f} GiB at "
            f"{bytes_a_block // block_size} bytes a token), but one sequence of {max_model_len or block_size} needs "
            f"{wanted * bytes_a_block / GIB:.2f} GiB. Raise kv_cache_memory_gib or gpu_memory_utilization, or lower "
            "max_model_len."
        )
    return blocks
