"""From an `EngineConfig` to a `Core`: the one place where an engine's parts are chosen and put together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.drafting.build import DrafterParts
from draftline.engine.fingerprint import SystemFingerprint
from draftline.engine.protocol import EngineInfo
from draftline.engine.runner.device import check_weights, device_name, device_uuids, select_device
from draftline.engine.runner.eager import EagerExecutor
from draftline.engine.runner.executor import ExecutorParts, Executors
from draftline.engine.runner.masks import ConstraintMasks
from draftline.engine.runner.memory import (
    DEFAULT_CPU_CACHE_GIB,
    GIB,
    block_bytes,
    cache_blocks,
    gpu_cache_bytes,
    largest_batch,
    memory_explained,
    peak_bytes,
    slot_table_bytes,
    taken_bytes,
    used_bytes,
    weight_bytes,
)
from draftline.engine.runner.peaks import peak_of
from draftline.engine.runner.runner import Runner
from draftline.engine.runner.shapes import StepShapes, launch_bound_tokens
from draftline.engine.scheduling.scheduler import Scheduler
from draftline.engine.scheduling.step_budget import StepBudget
from draftline.engine.scheduling.step_log import NO_STEP_LOG, StepLines
from draftline.engine.stats import MemoryUse
from draftline.engine.tools.formats import find_format, find_reasoning
from draftline.kernels import select_ops
from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.compile_workers import KernelCompileWorkers
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Accept, Ops
from draftline.kernels.slots import SlotTable
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import build_model
from draftline.models.loader import open_checkpoint
from draftline.models.model import Model
from draftline.models.tokenization.tokenizer import Tokenizer, load_tokenizer
from draftline.models.work import ModelWork
from draftline.quant import preferred_cpu_dtype
from draftline.spec.synthetic import synthetic_acceptance
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import KINDS
from draftline.structured.table_cache import cache_folder
from draftline.structured.vocabulary import ByteVocabulary

if TYPE_CHECKING:
    from draftline.kernels.triton.compile.ahead import CompileAhead

logger = logging.getLogger(__name__)

_STEP_TOKENS = {"cpu": 512, "cuda": 8192}
"""The most tokens of a step by device type, where the configuration does not say."""

_CONSTRAINT_BYTES = 64 << 20
"""Bytes for automata's tables, and as many for their masks. On a CPU, memory is only taken where it is written."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


_CACHE_DTYPES = {"bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""By ``kv_cache_dtype``; ``auto`` is the type of the activations."""


@dataclass(frozen=True, slots=True)
class Substitutes:
    """What a benchmark puts in the place of an engine's own parts, to measure these. No option offers it.

    Attributes:
        ops: makes the operations of a device; see `select_ops`.
        steps_ahead: how many steps may be in flight while the next is launched; None for the device's own number.
    """

    ops: Callable[[torch.device, str], Ops] = select_ops
    steps_ahead: int | None = None


NO_SUBSTITUTES = Substitutes()


def build_core(
    config: EngineConfig,
    workers: KernelCompileWorkers | None = None,
    substitutes: Substitutes = NO_SUBSTITUTES,
) -> Core:
    """Load the model and put an engine together around it.

    Args:
        config: the engine's options.
        workers: processes that compile kernels, if they were started already. Else they are started where they save time.
        substitutes: parts to measure the engine without its own.

    Raises:
        ModelLoadError: the model cannot be loaded, or cannot be served with these options.
        OutOfMemoryAtStartError: it does not fit.
    """
    device = select_device(config)
    with ExitStack() as undo:
        if device.type != "cuda" or not config.uses_graphs:
            core = _build(config, device, None, undo, substitutes)
        else:
            # Imported here, since a CPU runs without Triton.
            from draftline.kernels.triton.compile.ahead import CompileAhead

            with closing(CompileAhead(device, workers)) as ahead:
                core = _build(config, device, ahead, undo, substitutes)
        undo.pop_all()
    return core


def _build(
    config: EngineConfig, device: torch.device, ahead: CompileAhead | None, undo: ExitStack, substitutes: Substitutes
) -> Core:
    """Load the model, and put the engine together.

    Args:
        config: the engine's options.
        device: where it runs.
        ahead: compiles the kernels of CUDA graphs; None where there are no graphs.
        undo: gets what has to end if this fails.
        substitutes: parts that take the place of the engine's own.
    """
    started = time.monotonic()
    loaded = _load(config, device, undo, substitutes.ops)
    shape, model = loaded.model.config, loaded.model

    # The largest step bounds the memory of activations. Its kernels are compiled before it runs, those of graphs with it.
    largest = largest_batch(
        shape.max_positions,
        device,
        step_tokens=loaded.step_tokens,
        block_size=config.block_size,
        max_rows=config.max_num_seqs,
    )
    if ahead is not None:
        from draftline.engine.runner.warmup import compile_kernels

        with memory_explained(device, "the largest step"):
            later = compile_kernels(loaded.allocate(1, loaded.max_len), ahead, largest)

    # The cache and the graphs take the memory that the weights and the largest step leave.
    loaded, cache_bytes, activation_bytes = _share_memory(loaded, largest)
    blocks = cache_blocks(
        cache_bytes,
        loaded.block_bytes,
        config.block_size,
        config.max_model_len,
    )
    max_model_len = min(loaded.max_len, blocks * config.block_size)
    parts = loaded.allocate(blocks, max_model_len)
    scheduler = Scheduler(
        num_blocks=blocks,
        block_size=config.block_size,
        num_slots=config.max_num_seqs,
        token_budget=loaded.step_tokens,
        max_model_len=max_model_len,
        prefix_caching=config.prefix_caching,
    )

    graphs = {}
    used = used_bytes(device)
    if ahead is not None:
        from draftline.engine.runner.warmup import capture_graphs

        with memory_explained(device, "the CUDA graphs"):
            graphs = capture_graphs(parts)
    memory = MemoryUse(
        weights=loaded.weight_bytes,
        cache=blocks * loaded.block_bytes,
        activations=activation_bytes,
        graphs=max(0, used_bytes(device) - used),
    )
    runner = Runner(
        Executors(EagerExecutor(parts), loaded.shapes, graphs),
        parts.drafter,
        parts.table,
        ConstraintMasks(parts.constraints, parts.table),
        loaded.ops,
        loaded.eos_ids,
    )
    fingerprint = SystemFingerprint.of(
        device,
        dtype=loaded.dtype,
        weights=model.quantization,
        conversion=config.quantization,
        cache_dtype=loaded.cache_dtype,
    )
    policy = loaded.drafting.build_policy(
        runner,
        parts.table,
        loaded.shapes,
        generation=scheduler.block_generation,
        step_tokens=loaded.step_tokens,
        facts=(fingerprint.facts, repr(shape)),
    )
    info = EngineInfo(
        model=config.model,
        config=shape,
        eos_token_ids=loaded.eos_ids,
        quantization=model.quantization,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(device),
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        cache_blocks=blocks,
        block_size=config.block_size,
        drafters=(parts.drafter.name,) if parts.drafter.max_draft_tokens else (),
        constraint_kinds=KINDS,
        system_fingerprint=str(fingerprint),
        has_chat_template=loaded.tokenizer.has_chat_template,
        max_token_bytes=loaded.tokenizer.max_token_bytes,
        synthetic_acceptance=config.synthetic_acceptance,
        tool_format=find_format(
            config.tool_format, loaded.tokenizer.chat_template, shows_tools=loaded.tokenizer.shows_tools
        ),
        reasoning=find_reasoning(loaded.tokenizer.chat_template),
        shows_tools=loaded.tokenizer.shows_tools,
        scheduling=config.scheduling,
        peak=peak_of(device_name(device), model.quantization),
        memory=memory,
        device_uuids=device_uuids(device),
    )
    logger.info(
        "%s ready in %.1f s: %s weights, %s on %s, %d cache blocks of %d tokens",
        config.model, time.monotonic() - started, info.quantization, info.dtype, info.device, blocks, config.block_size,
    )  # fmt: skip
    logger.info("system fingerprint %s: %s", fingerprint, fingerprint.facts)
    if ahead is not None:
        later.start()  # only now: the start has measured how long steps take
    return Core(
        scheduler,
        runner,
        loaded.tokenizer,
        info,
        policy,
        budget=StepBudget(loaded.step_tokens, config.inter_token_target),
        steps_ahead=_steps_ahead(device) if substitutes.steps_ahead is None else substitutes.steps_ahead,
        compiler=loaded.compiler,
        work=ModelWork.of(model, loaded.cache_dtype),
        step_log=StepLines() if config.log_steps else NO_STEP_LOG,
    )


def _steps_ahead(device: torch.device) -> int:
    """On a CPU, host and device work would not overlap."""
    return 1 if device.type == "cuda" else 0


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The parts of an engine that do not depend on the size of its cache.

    Attributes:
        config: the engine's options.
        device: where it runs.
        tokenizer: the model's.
        compiler: compiles constraints for the tokenizer's tokens.
        eos_ids: the model's end-of-sequence ids.
        dtype: of the model's weights.
        ops: the device's operations.
        model: the target model.
        drafting: the drafter, without its cache.
        shapes: the step shapes that have graphs.
        constraints: the constraint table.
        step_tokens: the most tokens of a step.
        max_len: the most tokens of a sequence, if the cache has room for them.
        cache_dtype: of keys and values.
        weight_bytes: memory of the model's and the draft model's weights.
    """

    config: EngineConfig
    device: torch.device
    tokenizer: Tokenizer
    compiler: ConstraintCompiler
    eos_ids: tuple[int, ...]
    dtype: torch.dtype
    ops: Ops
    model: Model
    drafting: DrafterParts
    shapes: StepShapes
    constraints: ConstraintTable
    step_tokens: int
    max_len: int
    cache_dtype: torch.dtype
    weight_bytes: int

    @property
    def block_bytes(self) -> int:
        """Bytes of a cache block, the draft model's included."""
        return block_bytes(self.model.config, self.config.block_size, self.cache_dtype) + self.drafting.block_bytes

    def allocate(self, blocks: int, max_model_len: int) -> ExecutorParts:
        """Allocate the cache, the drafter's cache and the slot table.

        Args:
            blocks: cache blocks.
            max_model_len: the most tokens of a sequence.
        """
        shape, config = self.model.config, self.config
        table_len = max_model_len + self.drafting.max_draft_tokens
        table_blocks = -(-table_len // config.block_size)
        with memory_explained(
            self.device,
            f"the tables of {config.max_num_seqs} sequences (max_num_seqs) of {table_len} tokens (max_model_len)",
            slot_table_bytes(config.max_num_seqs, table_len, table_blocks, shape.vocab_size),
        ):
            table = SlotTable.allocate(config.max_num_seqs, table_len, table_blocks, self.device, shape.vocab_size)
        # On a CPU, a page of the cache is taken when it is first written: all must fit now, the drafter's included.
        cache_size = blocks * self.block_bytes
        with memory_explained(self.device, f"a cache of {cache_size / GIB:.2f} GiB (kv_cache_memory_gib)", cache_size):
            cache = KVCache.allocate(
                shape.num_layers,
                blocks,
                config.block_size,
                shape.num_kv_heads,
                shape.head_dim,
                dtype=self.cache_dtype,
                device=self.device,
            )
        drafter = self.drafting.build(blocks, self.step_tokens, self.constraints)
        accept = _accept(self.ops, config.synthetic_acceptance)
        return ExecutorParts(self.model, cache, table, self.ops, drafter, accept, self.constraints, self.shapes)


def _load(
    config: EngineConfig, device: torch.device, undo: ExitStack, make_ops: Callable[[torch.device, str], Ops]
) -> _Loaded:
    """Load tokenizer, model and drafter. ``undo`` gets what has to end if a later part fails."""
    checkpoint = open_checkpoint(config.model, load_format=config.load_format, quantization=config.quantization)
    check_weights(config.model, checkpoint, device, "quantization")
    shape = checkpoint.config
    tokenizer = load_tokenizer(
        config.tokenizer or config.model, shape, None if config.chat_template is None else Path(config.chat_template)
    )
    eos_ids = tuple(sorted({*shape.eos_token_ids, *tokenizer.eos_ids}))
    vocabulary = ByteVocabulary.of(tokenizer, shape.vocab_size, frozenset(eos_ids))
    compiler = ConstraintCompiler(vocabulary, cache_folder=cache_folder(config.constraint_cache))
    undo.callback(compiler.close)
    compiler.start()  # its worker loads while the weights do
    dtype = _dtype(config, checkpoint, device)
    ops = make_ops(device, config.kernels)
    taken = taken_bytes(device)
    weights = f"the weights of {config.model} in {str(dtype).removeprefix('torch.')}"
    with memory_explained(device, weights, weight_bytes(checkpoint, dtype)):
        model = build_model(checkpoint, shape, ops, dtype, device)
    drafting = DrafterParts(config, checkpoint, ops, dtype, device)
    on_gpu = taken_bytes(device) - taken
    constraints = _constraint_table(config, shape.vocab_size, drafting.max_draft_tokens, device)
    if config.synthetic_acceptance is not None:
        logger.warning(
            "synthetic acceptance of %g: drafts are accepted by chance, and all outputs mean nothing",
            config.synthetic_acceptance,
        )
    return _Loaded(
        config=config,
        device=device,
        tokenizer=tokenizer,
        compiler=compiler,
        eos_ids=eos_ids,
        dtype=dtype,
        ops=ops,
        model=model,
        drafting=drafting,
        shapes=StepShapes(config.max_num_seqs, drafting.max_draft_tokens, launch_bound_tokens(shape)),
        constraints=constraints,
        step_tokens=config.max_batched_tokens or _STEP_TOKENS.get(device.type, _STEP_TOKENS["cpu"]),
        max_len=_max_len(config, shape),
        cache_dtype=_cache_dtype(config, model),
        weight_bytes=on_gpu if device.type == "cuda" else model.nbytes,
    )


def _accept(ops: Ops, synthetic_acceptance_rate: float | None) -> Accept:
    """What verifies drafts: the device's operation, or chance in benchmarks."""
    if synthetic_acceptance_rate is None:
        return ops.accept
    return synthetic_acceptance(ops.accept, synthetic_acceptance_rate)


def _constraint_table(config: EngineConfig, vocab: int, drafts: int, device: torch.device) -> ConstraintTable:
    mask_bytes = 4 * -(-vocab // 32)
    size = 2 * _CONSTRAINT_BYTES + config.max_num_seqs * (drafts + 1) * mask_bytes
    with memory_explained(device, f"the constraint tables of {config.max_num_seqs} sequences (max_num_seqs)", size):
        return ConstraintTable.allocate(
            config.max_num_seqs,
            vocab,
            words=_CONSTRAINT_BYTES // 4,
            masks=_CONSTRAINT_BYTES // mask_bytes,
            samples=drafts + 1,
            device=device,
        )


def _sample_bytes(model: Model) -> int:
    """Memory that graphs keep for each token that a step decides: its logits, and sampling's copies of them in float32."""
    return model.config.vocab_size * (model.dtype.itemsize + 2 * torch.float32.itemsize)


def _dtype(config: EngineConfig, checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    if device.type != "cpu":
        return torch.bfloat16
    # The format of the largest weights decides which type is fastest.
    return preferred_cpu_dtype(checkpoint.tensor("model.layers.0.mlp.down_proj.weight").format)


def _cache_dtype(config: EngineConfig, model: Model) -> torch.dtype:
    return _CACHE_DTYPES.get(config.kv_cache_dtype, model.cache_dtype)


def _max_len(config: EngineConfig, shape: ModelConfig) -> int:
    if config.max_model_len is None:
        return shape.max_positions
    if config.max_model_len > shape.max_positions:
        raise ModelLoadError(
            f"max_model_len: {config.max_model_len} is more than the {shape.max_positions} positions of {config.model}"
        )
    return config.max_model_len


def _share_memory(loaded: _Loaded, largest: Batch) -> tuple[_Loaded, int, int]:
    """Size the cache.

    Returns:
        The parts, with graphs for fewer rows where those of all would take more than the cache; the cache's bytes; and those
        that the largest step's activations take, 0 where these are not measured.
    """
    config, model = loaded.config, loaded.model
    if config.kv_cache_memory_gib is not None:
        return loaded, int(config.kv_cache_memory_gib * GIB), 0
    if model.device.type == "cpu":
        return loaded, int(DEFAULT_CPU_CACHE_GIB * GIB), 0
    # The largest step runs on caches of just its own size, which do not count.
    blocks = largest.block_tables.shape[1]
    sink = loaded.drafting.build(blocks, loaded.step_tokens, loaded.constraints).sink
    peak = peak_bytes(model, largest, block_size=config.block_size, cache_dtype=loaded.cache_dtype, sink=sink)
    peak -= blocks * loaded.drafting.block_bytes
    activations = max(0, peak - loaded.weight_bytes)
    left = gpu_cache_bytes(model.device, config.gpu_memory_utilization, peak)
    if not config.uses_graphs:
        return loaded, left, activations
    shapes = loaded.shapes.within(left // 2 // _sample_bytes(model))
    if shapes is not loaded.shapes:
        logger.info(
            "CUDA graphs for steps that decide up to %d tokens instead of %d: %.2f GiB are left for graphs and cache",
            shapes.max_samples, loaded.shapes.max_samples, left / GIB,
        )  # fmt: skip
    return replace(loaded, shapes=shapes), left - shapes.max_samples * _sample_bytes(model), activations
