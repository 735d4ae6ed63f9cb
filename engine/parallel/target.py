"""``Target``: what every rank of an engine has: the target model, or its part of it, and the resulting sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from draftline.engine.config import EngineConfig
from draftline.engine.runner.device import has_fp8
from draftline.engine.runner.executor import ExecutorParts
from draftline.engine.runner.memory import (
    DEFAULT_CPU_CACHE_GIB,
    GIB,
    block_bytes,
    largest_batch,
    memory_explained,
    peak_bytes,
    slot_table_bytes,
    weight_bytes,
)
from draftline.engine.runner.shapes import StepShapes, launch_bound_tokens
from draftline.engine.runner.timing import StepClock
from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Accept, AreUneven, Ops, Sample
from draftline.kernels.slots import SlotTable
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import build_model
from draftline.models.hidden_states import HiddenStateSink
from draftline.models.model import Model
from draftline.models.parallel.shard import Shard
from draftline.quant import preferred_cpu_dtype
from draftline.spec.drafter import Drafter
from draftline.spec.synthetic import synthetic_acceptance

_STEP_TOKENS = {"cpu": 512, "cuda": 8192}
"""The most tokens of a step by device type, where the configuration does not say."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_CACHE_DTYPES = {"bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""By ``kv_cache_dtype``; ``auto`` is the type of the activations."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target model on one device.

    Attributes:
        config: the engine's options.
        device: where it runs.
        shape: the whole model's configuration; ``model.config`` is that of this rank's part.
        dtype: of the weights.
        ops: the device's operations.
        model: the model.
        step_tokens: the most tokens of a step.
        max_len: the most tokens of a sequence, if the cache has room for them.
        cache_dtype: of keys and values.
    """

    config: EngineConfig
    device: torch.device
    shape: ModelConfig
    dtype: torch.dtype
    ops: Ops
    model: Model
    step_tokens: int
    max_len: int
    cache_dtype: torch.dtype

    @staticmethod
    def load(config: EngineConfig, checkpoint: Checkpoint, device: torch.device, ops: Ops, shard: Shard) -> Target:
        """Load the part of the model that ``shard`` has.

        Raises:
            ModelLoadError: the model cannot be loaded, or cannot be served with these options.
            OutOfMemoryAtStartError: it does not fit.
        """
        dtype = _dtype(config, checkpoint, device)
        weights = f"the weights of {config.model} in {str(dtype).removeprefix('torch.')}"
        with memory_explained(
            device, weights, weight_bytes(shard.checkpoint(checkpoint), dtype), _less_weights(config, device)
        ):
            model = build_model(checkpoint, checkpoint.config, ops, dtype, device, shard)
        return Target(
            config=config,
            device=device,
            shape=checkpoint.config,
            dtype=dtype,
            ops=ops,
            model=model,
            step_tokens=config.max_batched_tokens or _STEP_TOKENS.get(device.type, _STEP_TOKENS["cpu"]),
            max_len=_max_len(config, checkpoint.config),
            cache_dtype=_CACHE_DTYPES.get(config.kv_cache_dtype, model.cache_dtype),
        )

    @property
    def block_bytes(self) -> int:
        """Bytes of a cache block."""
        return block_bytes(self.model.config, self.config.block_size, self.cache_dtype)

    @property
    def sample_bytes(self) -> int:
        """Memory that graphs keep for each decided token: its logits, and sampling's copies of them in float32."""
        return self.shape.vocab_size * (self.model.dtype.itemsize + 2 * torch.float32.itemsize)

    def shapes(self, max_draft_tokens: int) -> StepShapes:
        """The step shapes that have graphs."""
        # The size that holds the largest step has less than twice its tokens.
        prompt_tokens = min(launch_bound_tokens(self.shape), 2 * self.step_tokens)
        return StepShapes(self.config.max_num_seqs, max_draft_tokens, prompt_tokens, self.max_len)

    def uneven(self, table: SlotTable, cache: KVCache) -> AreUneven:
        """The rule by which steps are uneven.

        It is the same on all ranks, whose steps must have the same shape, though the first ranks may have more heads.
        """
        groups = -(-self.shape.num_kv_heads // self.config.tensor_parallel_size)
        heads = groups * (self.shape.num_heads // self.shape.num_kv_heads)
        return self.ops.uneven_rule(table.tokens.shape[1], (heads, groups), cache.layers[0])

    def allocate(
        self,
        blocks: int,
        max_model_len: int,
        shapes: StepShapes,
        constraints: ConstraintTable,
        sample: Sample,
        build_drafter: Callable[[int], Drafter],
        drafter_block_bytes: int,
    ) -> ExecutorParts:
        """Allocate the slot table, the cache and the drafter's cache.

        Args:
            blocks: cache blocks.
            max_model_len: the most tokens of a sequence.
            shapes: the step shapes that have graphs.
            constraints: the constraint table.
            sample: samples; see `ExecutorParts`.
            build_drafter: makes the drafter, for a cache of so many blocks.
            drafter_block_bytes: bytes of a block of the drafter's cache.
        """
        table = self._allocate_table(max_model_len + shapes.draft_lens[-1])
        cache = self._allocate_cache(blocks, blocks * (self.block_bytes + drafter_block_bytes))
        drafter = build_drafter(blocks)
        clock = StepClock.of(self.ops, self.device)
        return ExecutorParts(
            self.model, cache, table, self.ops, drafter, sample, self.accept, constraints, shapes, clock
        )

    def _allocate_table(self, table_len: int) -> SlotTable:
        """Allocate the slot table, for ``table_len`` tokens of each sequence, drafts included."""
        config = self.config
        table_blocks = -(-table_len // config.block_size)
        with memory_explained(
            self.device,
            f"the tables of {config.max_num_seqs} sequences (max_num_seqs) of {table_len} tokens (max_model_len)",
            slot_table_bytes(config.max_num_seqs, table_len, table_blocks, self.shape.vocab_size),
        ):
            return SlotTable.allocate(config.max_num_seqs, table_len, table_blocks, self.device, self.shape.vocab_size)

    def _allocate_cache(self, blocks: int, needs: int) -> KVCache:
        """Allocate the cache of keys and values. ``needs`` are its bytes, and those of what is allocated with it."""
        # On a CPU, a page of the cache is taken when it is first written: all must fit now, the drafter's included.
        shape = self.model.config
        with memory_explained(self.device, f"a cache of {needs / GIB:.2f} GiB (kv_cache_memory_gib)", needs):
            return KVCache.allocate(
                shape.num_layers,
                blocks,
                self.config.block_size,
                shape.num_kv_heads,
                shape.head_dim,
                dtype=self.cache_dtype,
                device=self.device,
            )

    @property
    def fixed_cache_bytes(self) -> int | None:
        """Bytes of the cache where they do not depend on the memory that is left; else None."""
        if self.config.kv_cache_memory_gib is not None:
            return int(self.config.kv_cache_memory_gib * GIB)
        return int(DEFAULT_CPU_CACHE_GIB * GIB) if self.device.type == "cpu" else None

    def largest_batch(self) -> Batch:
        """The largest step there can be."""
        return largest_batch(
            self.shape.max_positions,
            self.device,
            step_tokens=self.step_tokens,
            block_size=self.config.block_size,
            max_rows=self.config.max_num_seqs,
        )

    def peak_bytes(self, largest: Batch, sink: HiddenStateSink) -> int:
        """Run the largest step, and return the most bytes that it took, its own cache apart.

        Args:
            largest: the largest step.
            sink: receives the hidden states that the drafter wants.
        """
        return peak_bytes(
            self.model, largest, block_size=self.config.block_size, cache_dtype=self.cache_dtype, sink=sink
        )

    @property
    def accept(self) -> Accept:
        """The operation that verifies drafts: the device's, or in benchmarks one that accepts by chance."""
        rate = self.config.synthetic_acceptance
        return self.ops.accept if rate is None else synthetic_acceptance(self.ops.accept, rate)


def _less_weights(config: EngineConfig, device: torch.device) -> str:
    """The options with which a device's weights take less memory."""
    if config.quantization == "auto":
        formats = "fp8 or int8" if has_fp8(device) else "int8"
        return f"Weights in eight bits (quantization {formats}) take less; tensor_parallel_size divides them."
    return "tensor_parallel_size divides them."


def _dtype(config: EngineConfig, checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    if device.type != "cpu":
        return torch.bfloat16
    # The format of the largest weights decides which type is fastest.
    return preferred_cpu_dtype(checkpoint.tensor("model.layers.0.mlp.down_proj.weight").format)


def _max_len(config: EngineConfig, shape: ModelConfig) -> int:
    if config.max_model_len is None:
        return shape.max_positions
    if config.max_model_len > shape.max_positions:
        raise ModelLoadError(
            f"max_model_len: {config.max_model_len} is more than the {shape.max_positions} positions of {config.model}"
        )
    return config.max_model_len
