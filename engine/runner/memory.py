"""Memory: how many cache blocks fit, and whether a device still computes.

On a CPU the cache has a fixed budget. On a GPU it takes what the weights and the largest step leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch

from draftline.engine.errors import DeviceLostError
from draftline.engine.runner.host_memory import HostMemory, host_memory
from draftline.kernels.batch import Batch, KVCache, bytes_a_head
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.hidden_states import HiddenStateSink
from draftline.models.model import Model
from draftline.models.weight_kinds import weight_kinds
from draftline.quant.tensor import RawTensor

GIB = 1 << 30
DEFAULT_CPU_CACHE_GIB = 1.0

SMALLER_STEP = (
    "Lower max_batched_tokens or max_num_seqs, or let the weights take less, by quantization or tensor_parallel_size."
)
"""What helps where the largest step does not fit beside the weights, or leaves nothing for the cache."""


class OutOfMemoryAtStartError(ModelLoadError):
    """The model, or a cache large enough to serve anything, does not fit; the message has the numbers."""


@contextmanager
def memory_explained(device: torch.device, what: str, needs: int = 0, helps: str = "") -> Iterator[None]:
    """Turn a lack of memory for ``what`` into an error with the numbers.

    A GPU's allocator fails by itself. Linux gives out memory that it does not have, and kills the process that uses it:
    on a CPU, the memory is compared with what there is before any is taken.

    Args:
        device: where the memory is taken.
        what: what it is taken for.
        needs: how much that is at least, in bytes.
        helps: a sentence that names the options that need less.

    Raises:
        OutOfMemoryAtStartError: there is not enough.
    """
    if device.type == "cpu":
        _check_host(what, needs, helps, host_memory())
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_reserved(device)  # what was allocated for it may have been freed on the way here
        raise OutOfMemoryAtStartError(
            f"{device} has no room for {_wanted(what, needs)}: of its {total / GIB:.1f} GiB, this process has taken "
            f"{own / GIB:.1f} until then, the driver and other processes take "
            f"{(total - free - own) / GIB:.1f}, and {free / GIB:.1f} are free.{_advice(helps)}"
        ) from error


def _wanted(what: str, needs: int) -> str:
    return f"{what}, which needs {needs / GIB:.1f} GiB" if needs else what


def _advice(helps: str) -> str:
    return f" {helps}" if helps else ""


def _check_host(what: str, needs: int, helps: str, memory: HostMemory | None) -> None:
    if memory is None or needs <= memory.free:
        return
    others = max(0, memory.total - memory.free - memory.own)
    raise OutOfMemoryAtStartError(
        f"cpu has no room for {_wanted(what, needs)}: of the {memory.total / GIB:.1f} GiB of {memory.whose}, this process "
        f"has taken {memory.own / GIB:.1f}, others take {others / GIB:.1f}, and {memory.free / GIB:.1f} are free."
        f"{_advice(helps)}"
    )


def weight_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """About how many bytes a checkpoint's weights take once they are loaded.

    Args:
        checkpoint: the weights.
        dtype: of the weights that are not quantized.
    """
    return int(sum(numbers * _bytes_a_number(raw, dtype) for raw, numbers in weight_kinds(checkpoint)))


def _bytes_a_number(raw: RawTensor, dtype: torch.dtype) -> float:
    if raw.convert_to is not None and len(raw.shape) == 2:
        return 1
    return dtype.itemsize if raw.data.is_floating_point() and raw.scales is None else raw.data.nbytes / prod(raw.shape)


def taken_bytes(device: torch.device) -> int:
    """Bytes of this process's tensors on a GPU; 0 on a CPU, where torch does not count them."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def used_bytes(device: torch.device) -> int:
    """Bytes of a GPU that are in use, by the driver's count, which has graphs in it; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def slot_table_bytes(num_slots: int, max_len: int, max_blocks: int, vocab: int) -> int:
    """Bytes of a `SlotTable`, whose tokens, block tables and allowed ids take most."""
    return 4 * num_slots * (max_len + max_blocks + vocab // 32)


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one cache block: keys and values of ``block_size`` tokens in every layer."""
    return 2 * config.num_layers * block_size * config.num_kv_heads * bytes_a_head(config.head_dim, dtype)


def gpu_cache_bytes(device: torch.device, utilization: float, peak_bytes: int) -> int:
    """Bytes for the cache: this process's share of a GPU's memory, less all other uses.

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
            f"{total * utilization / GIB:.1f}. The weights and a full step take {peak_bytes / GIB:.1f}, and the driver "
            f"and other processes {others / GIB:.1f}, so nothing is left for the cache. Raise gpu_memory_utilization. "
            f"{SMALLER_STEP}"
        )
    return left


def cache_blocks(
    budget_bytes: int, bytes_a_block: int, block_size: int, max_model_len: int | None, *, option: str
) -> int:
    """How many blocks a budget holds.

    Args:
        budget_bytes: bytes for the cache.
        bytes_a_block: bytes of a block.
        block_size: tokens of a block.
        max_model_len: the most tokens of a sequence; None for as many as fit.
        option: the option that decides the budget, for the error.

    Raises:
        OutOfMemoryAtStartError: not even one sequence of ``max_model_len`` (or one block) fits.
    """
    blocks = budget_bytes // bytes_a_block
    wanted = 1 if max_model_len is None else -(-max_model_len // block_size)
    if blocks < wanted:
        lower = "max_model_len" if wanted > 1 else "block_size"
        raise OutOfMemoryAtStartError(
            f"the cache has room for {blocks} blocks of {block_size} tokens ({_size(budget_bytes)} at "
            f"{bytes_a_block // block_size} bytes a token), but one sequence of {max_model_len or block_size} tokens "
            f"needs {wanted} ({_size(wanted * bytes_a_block)}). Raise {option}, or lower {lower}."
        )
    return blocks


def _size(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.2f} MiB"


def largest_batch(
    max_positions: int, device: torch.device, *, step_tokens: int, block_size: int, max_rows: int
) -> Batch:
    """The largest step there can be.

    Args:
        max_positions: the longest sequence.
        device: where it runs.
        step_tokens: the most tokens of a step.
        block_size: tokens a cache block.
        max_rows: the most rows that want logits.
    """
    length = min(step_tokens, max_positions)
    rows = -(-step_tokens // length)
    blocks = -(-length // block_size)
    steps = torch.arange(length, device=device)
    return Batch(
        token_ids=torch.zeros(rows * length, dtype=torch.int64, device=device),
        positions=steps.repeat(rows),
        cache_index=steps.repeat(rows),
        query_starts=torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=device),
        context_lens=torch.full((rows,), length, dtype=torch.int32, device=device),
        block_tables=torch.arange(blocks, dtype=torch.int32, device=device).repeat(rows, 1),
        logits_index=torch.arange(min(max_rows, rows * length), device=device),
        query_lens_host=(length,) * rows,
        context_lens_host=(length,) * rows,
    )


@torch.inference_mode()
def peak_bytes(model: Model, batch: Batch, *, block_size: int, cache_dtype: torch.dtype, sink: HiddenStateSink) -> int:
    """Run a step on a cache of just its own size, and return the peak memory without that cache, in bytes.

    Args:
        model: on a GPU.
        batch: see `largest_batch`.
        block_size: tokens a cache block.
        cache_dtype: what the cache is kept in.
        sink: receives the hidden states that the drafter wants.
    """
    device, shape, blocks = batch.token_ids.device, model.config, batch.block_tables.shape[1]
    cache = KVCache.allocate(
        shape.num_layers, blocks, block_size, shape.num_kv_heads, shape.head_dim, dtype=cache_dtype, device=device
    )
    torch.cuda.reset_peak_memory_stats(device)
    logits = model.forward(batch, cache, sink)
    torch.softmax(logits, -1)  # the sampler's workspace is of the logits' size
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - blocks * block_bytes(shape, block_size, cache_dtype)
    del cache, logits
    torch.cuda.empty_cache()
    return peak


def check_device(device: torch.device) -> None:
    """Check that ``device`` still computes after a step has failed on it.

    A CUDA kernel that reads where it must not leaves its process's context unusable: everything fails from then on. A
    lack of memory, or a fault of the host, does not.

    Raises:
        DeviceLostError: it is not.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()
    except RuntimeError as error:
        raise DeviceLostError(f"{device} computes nothing any more: {str(error).splitlines()[0]}") from error
