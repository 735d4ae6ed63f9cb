"""From an `EngineConfig` to a core that can run: the one place where the parts are chosen and put together."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING

import torch

from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.drafting.build import DrafterParts
from draftline.engine.protocol import EngineInfo
from draftline.engine.runner.draft_by_operation import DraftByOperation
from draftline.engine.runner.eager import PassByOperation
from draftline.engine.runner.executor import DraftPass, Pass, Passes
from draftline.engine.runner.masks import Constraining
from draftline.engine.runner.memory import (
    DEFAULT_CPU_CACHE_GIB,
    GIB,
    block_bytes,
    cache_blocks,
    gpu_cache_bytes,
    largest_batch,
    memory_explained,
    peak_bytes,
)
from draftline.engine.runner.runner import Runner
from draftline.engine.runner.shapes import Buckets, launch_bound_tokens
from draftline.engine.runner.step_parts import StepParts
from draftline.engine.scheduling.scheduler import Scheduler
from draftline.kernels import select_ops
from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.compile_workers import KernelCompileWorkers
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.slots import SlotTable
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import build_model
from draftline.models.loader import open_checkpoint
from draftline.models.model import Model
from draftline.models.tokenization.tokenizer import load_tokenizer
from draftline.quant import preferred_cpu_dtype
from draftline.spec.synthetic import synthetic_acceptance
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import KINDS
from draftline.structured.vocabulary import ByteVocabulary

if TYPE_CHECKING:
    from draftline.kernels.triton.compile.ahead import CompileAhead

logger = logging.getLogger(__name__)

_STEP_TOKENS = {"cpu": 512, "cuda": 8192}
"""Tokens one step computes at most, by device type, where the configuration does not say."""

_CONSTRAINT_BYTES = 64 << 20
"""Room for automata's tables, and as much for their masks. On a CPU it takes memory only where it is written."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


_CACHE_DTYPES = {"bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""By ``kv_cache_dtype``; ``auto`` is the activations'."""


def build_core(config: EngineConfig, workers: KernelCompileWorkers | None = None) -> Core:
    """Load the model and put an engine together around it.

    Args:
        config: its options.
        workers: what compiles kernels, if it was started already; else it is where it pays.

    Raises:
        ModelLoadError: the model cannot be loaded, or cannot be served with these options.
        OutOfMemoryAtStartError: it does not fit.
    """
    device = _device(config.device)
    if device.type != "cuda" or config.enforce_eager:
        return _build(config, device, None)
    # Imported here, since a CPU does without Triton.
    from draftline.kernels.triton.compile.ahead import CompileAhead

    with closing(CompileAhead(device, workers)) as ahead:
        return _build(config, device, ahead)


def _build(config: EngineConfig, device: torch.device, ahead: CompileAhead | None) -> Core:
    """``ahead`` is there where CUDA graphs are, and compiles their kernels."""
    started = time.monotonic()
    checkpoint = open_checkpoint(config.model, load_format=config.load_format, quantization=config.quantization)
    tokenizer = load_tokenizer(config.tokenizer or config.model, checkpoint.config)
    shape = checkpoint.config
    eos_ids = tuple(sorted({*shape.eos_token_ids, *tokenizer.eos_ids}))
    dtype = _dtype(config, checkpoint, device)
    ops = select_ops(device)
    with memory_explained(device, f"the weights of {config.model} in {str(dtype).removeprefix('torch.')}"):
        model = build_model(checkpoint, shape, ops, dtype, device)
    drafting = DrafterParts(config, checkpoint, ops, dtype, device)
    buckets = Buckets(config.max_num_seqs, drafting.max_draft_tokens, launch_bound_tokens(shape))
    vocabulary = ByteVocabulary.of(tokenizer, shape.vocab_size, frozenset(eos_ids))
    with memory_explained(device, "the tables of constraints"):
        constraints = _constraint_table(config, shape.vocab_size, drafting.max_draft_tokens, device)
    budget = config.max_batched_tokens or _STEP_TOKENS.get(device.type, _STEP_TOKENS["cpu"])
    wanted_len = _wanted_len(config, shape)
    cache_dtype = _cache_dtype(config, model, device)
    bytes_a_block = block_bytes(shape, config.block_size, cache_dtype) + drafting.block_bytes
    chance = config.synthetic_acceptance
    accept = ops.accept if chance is None else synthetic_acceptance(ops.accept, chance)
    if chance is not None:
        logger.warning(
            "synthetic acceptance of %g: drafts are accepted by chance, and all outputs mean nothing", chance
        )

    def allocate(blocks: int, max_model_len: int) -> StepParts:
        with memory_explained(device, f"a cache of {blocks * bytes_a_block / GIB:.2f} GiB"):
            cache = KVCache.allocate(
                shape.num_layers,
                blocks,
                config.block_size,
                shape.num_kv_heads,
                shape.head_dim,
                dtype=cache_dtype,
                device=device,
            )
        drafter = drafting.build(blocks, budget, constraints)
        table_len = max_model_len + drafting.max_draft_tokens
        table = SlotTable.allocate(config.max_num_seqs, table_len, -(-table_len // config.block_size), device)
        return StepParts(model, cache, table, ops, drafter, accept, Constraining(constraints, table), buckets)

    largest = largest_batch(
        shape.max_positions,
        device,
        step_tokens=budget,
        block_size=config.block_size,
        max_rows=config.max_num_seqs,
    )
    if ahead is not None:
        from draftline.engine.runner.warmup import compile_kernels

        with memory_explained(device, "the largest step"):
            compile_kernels(allocate(1, wanted_len), ahead, largest)
    blocks = cache_blocks(
        _cache_bytes(config, model, largest, buckets, cache_dtype),
        bytes_a_block,
        config.block_size,
        config.max_model_len,
    )
    max_model_len = min(wanted_len, blocks * config.block_size)
    parts = allocate(blocks, max_model_len)
    drafter = parts.drafter
    info = EngineInfo(
        model=config.model,
        config=shape,
        eos_token_ids=eos_ids,
        quantization=model.quantization,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        cache_blocks=blocks,
        block_size=config.block_size,
        drafters=(drafter.name,) if drafter.max_draft_tokens else (),
        constraint_kinds=KINDS,
        synthetic_acceptance=config.synthetic_acceptance,
    )
    scheduler = Scheduler(
        num_blocks=blocks,
        block_size=config.block_size,
        num_slots=config.max_num_seqs,
        token_budget=budget,
        max_model_len=max_model_len,
        prefix_caching=config.prefix_caching,
    )
    deciding: list[Pass] = [PassByOperation(model, parts.cache, parts.table, ops, accept, parts.constraining)]
    proposing: list[DraftPass] = [DraftByOperation(drafter, parts.table)]
    if ahead is not None:
        from draftline.engine.runner.warmup import capture_graphs

        with memory_explained(device, "the CUDA graphs"):
            graphs = capture_graphs(parts)
            proposing.insert(0, graphs[0])
            deciding.insert(0, graphs[1])
    passes = Passes(proposing, deciding, parts.constraining, device)
    runner = Runner(passes, drafter, parts.table, parts.constraining, ops, eos_ids)
    policy = drafting.build_policy(
        passes, parts.table, buckets, generation=scheduler.block_generation, step_tokens=budget
    )
    logger.info(
        "%s ready in %.1f s: %s weights, %s on %s, %d cache blocks of %d tokens",
        config.model, time.monotonic() - started, info.quantization, info.dtype, info.device, blocks, config.block_size,
    )  # fmt: skip
    # On a CPU there is nothing to overlap.
    steps_ahead = 1 if device.type == "cuda" else 0
    return Core(
        scheduler, runner, tokenizer, info, policy, steps_ahead=steps_ahead, compiler=ConstraintCompiler(vocabulary)
    )


def _constraint_table(config: EngineConfig, vocab: int, drafts: int, device: torch.device) -> ConstraintTable:
    mask_bytes = 4 * -(-vocab // 32)
    return ConstraintTable.allocate(
        config.max_num_seqs,
        vocab,
        words=_CONSTRAINT_BYTES // 4,
        masks=_CONSTRAINT_BYTES // mask_bytes,
        samples=drafts + 1,
        device=device,
    )


def _graph_bytes(config: EngineConfig, vocab_size: int, dtype: torch.dtype, buckets: Buckets) -> int:
    """What the graphs keep for themselves: the largest logits, and what sampling makes of them in float32."""
    if config.enforce_eager:
        return 0
    samples = max(shape.samples for shape in [*buckets.decodes, *buckets.prompts])
    return samples * vocab_size * (dtype.itemsize + 2 * torch.float32.itemsize)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelLoadError(f"device: {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def _dtype(config: EngineConfig, checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    if device.type != "cpu":
        return torch.bfloat16
    # What the largest weights are stored in decides what pays.
    return preferred_cpu_dtype(checkpoint.tensor("model.layers.0.mlp.down_proj.weight").format)


def _cache_dtype(config: EngineConfig, model: Model, device: torch.device) -> torch.dtype:
    dtype = _CACHE_DTYPES.get(config.kv_cache_dtype, model.cache_dtype)
    if dtype == torch.float8_e4m3fn and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise ModelLoadError(
            f"kv_cache_dtype: FP8 needs a GPU of compute capability 8.9, and {device} is older; 'int8' runs there"
        )
    return dtype


def _wanted_len(config: EngineConfig, shape: ModelConfig) -> int:
    if config.max_model_len is None:
        return shape.max_positions
    if config.max_model_len > shape.max_positions:
        raise ModelLoadError(
            f"max_model_len: {config.max_model_len} is more than the {shape.max_positions} positions of {config.model}"
        )
    return config.max_model_len


def _cache_bytes(config: EngineConfig, model: Model, largest: Batch, buckets: Buckets, cache_dtype: torch.dtype) -> int:
    device = model.device
    if config.kv_cache_memory_gib is not None:
        return int(config.kv_cache_memory_gib * GIB)
    if device.type == "cpu":
        return int(DEFAULT_CPU_CACHE_GIB * GIB)
    peak = peak_bytes(model, largest, block_size=config.block_size, cache_dtype=cache_dtype)
    graphs = _graph_bytes(config, model.config.vocab_size, model.dtype, buckets)
    return gpu_cache_bytes(device, config.gpu_memory_utilization, peak + graphs)
