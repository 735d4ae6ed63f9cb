"""From an `EngineConfig` to a core that can run: the one place where the parts are chosen and put together."""

from __future__ import annotations

import logging
import time

import torch

from draftline.engine.buckets import Buckets, launch_bound_tokens
from draftline.engine.build_drafter import DrafterParts
from draftline.engine.client import EngineInfo
from draftline.engine.config import EngineConfig
from draftline.engine.constraining import Constraining
from draftline.engine.core import Core
from draftline.engine.draft_by_operation import DraftByOperation
from draftline.engine.memory import (
    DEFAULT_CPU_CACHE_GIB,
    GIB,
    block_bytes,
    cache_blocks,
    gpu_cache_bytes,
    memory_explained,
    peak_bytes,
)
from draftline.engine.pass_by_operation import PassByOperation
from draftline.engine.passes import DraftPass, Pass, Passes
from draftline.engine.runner import Runner
from draftline.engine.scheduler import Scheduler
from draftline.kernels import select_ops
from draftline.kernels.batch import KVCache
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Accept, Ops
from draftline.kernels.slots import SlotTable
from draftline.models.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import build_model
from draftline.models.loader import open_checkpoint
from draftline.models.model import Model
from draftline.models.tokenizer import load_tokenizer
from draftline.quant import preferred_cpu_dtype
from draftline.spec.drafter import Drafter
from draftline.spec.synthetic import synthetic_acceptance
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import KINDS
from draftline.structured.vocabulary import ByteVocabulary

logger = logging.getLogger(__name__)

_STEP_TOKENS = {"cpu": 512, "cuda": 8192}
"""Tokens one step computes at most, by device type, where the configuration does not say."""

_CONSTRAINT_BYTES = 64 << 20
"""Room for automata's tables, and as much for their masks. On a CPU it takes memory only where it is written."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


_CACHE_DTYPES = {"bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""By ``kv_cache_dtype``; ``auto`` is the activations'."""


def build_core(config: EngineConfig) -> Core:
    """Load the model and put an engine together around it.

    Raises:
        ModelLoadError: the model cannot be loaded, or cannot be served with these options.
        OutOfMemoryAtStartError: it does not fit.
    """
    started = time.monotonic()
    device = _device(config.device)
    checkpoint = open_checkpoint(config.model, load_format=config.load_format, quantization=config.quantization)
    tokenizer = load_tokenizer(config.tokenizer or config.model, checkpoint.config)
    shape = checkpoint.config
    eos_ids = tuple(sorted({*shape.eos_token_ids, *tokenizer.eos_ids}))
    dtype = _dtype(config, checkpoint, device)
    ops = select_ops(device)
    with memory_explained(device, f"the weights of {config.model} in {str(dtype).removeprefix('torch.')}"):
        model = build_model(checkpoint, shape, ops, dtype, device)
    parts = DrafterParts(config, checkpoint, ops, dtype, device)
    buckets = Buckets(config.max_num_seqs, parts.max_draft_tokens, launch_bound_tokens(shape))
    vocabulary = ByteVocabulary.of(tokenizer, shape.vocab_size, frozenset(eos_ids))
    with memory_explained(device, "the tables of constraints"):
        constraints = _constraint_table(config, shape.vocab_size, parts.max_draft_tokens, device)
    budget = config.max_batched_tokens or _STEP_TOKENS.get(device.type, _STEP_TOKENS["cpu"])
    wanted_len = _wanted_len(config, shape)
    cache_dtype = _cache_dtype(config, model, device)
    bytes_a_block = block_bytes(shape, config.block_size, cache_dtype) + parts.block_bytes
    blocks = cache_blocks(
        _cache_bytes(config, model, shape, device, budget, buckets, cache_dtype),
        bytes_a_block,
        config.block_size,
        config.max_model_len,
    )
    max_model_len = min(wanted_len, blocks * config.block_size)
    table_len = max_model_len + parts.max_draft_tokens
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
    drafter = parts.build(blocks, budget, constraints)
    table = SlotTable.allocate(config.max_num_seqs, table_len, -(-table_len // config.block_size), device)
    constraining = Constraining(constraints, table)
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
    chance = config.synthetic_acceptance
    accept = ops.accept if chance is None else synthetic_acceptance(ops.accept, chance)
    if chance is not None:
        logger.warning(
            "synthetic acceptance of %g: drafts are accepted by chance, and all outputs mean nothing", chance
        )
    deciding: list[Pass] = [PassByOperation(model, cache, table, ops, accept, constraining)]
    proposing: list[DraftPass] = [DraftByOperation(drafter, table)]
    if device.type == "cuda" and not config.enforce_eager:
        with memory_explained(device, "the CUDA graphs"):
            graphs = _graphs(model, cache, table, ops, drafter, accept, constraining, buckets)
            proposing.insert(0, graphs[0])
            deciding.insert(0, graphs[1])
    passes = Passes(proposing, deciding, constraining, device)
    runner = Runner(passes, drafter, table, constraining, ops, eos_ids)
    drafting = parts.build_policy(passes, table, buckets, generation=scheduler.block_generation, step_tokens=budget)
    logger.info(
        "%s ready in %.1f s: %s weights, %s on %s, %d cache blocks of %d tokens",
        config.model, time.monotonic() - started, info.quantization, info.dtype, info.device, blocks, config.block_size,
    )  # fmt: skip
    # On a CPU there is nothing to overlap.
    steps_ahead = 1 if device.type == "cuda" else 0
    return Core(
        scheduler, runner, tokenizer, info, drafting, steps_ahead=steps_ahead, compiler=ConstraintCompiler(vocabulary)
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


def _graphs(
    model: Model,
    cache: KVCache,
    table: SlotTable,
    ops: Ops,
    drafter: Drafter,
    accept: Accept,
    constraining: Constraining,
    buckets: Buckets,
) -> tuple[DraftPass, Pass]:
    # Imported here, since a CPU does without Triton.
    from draftline.engine.draft_graphs import DraftGraphs
    from draftline.engine.graph_recorder import GraphRecorder
    from draftline.engine.pass_graphs import GraphPasses

    started = time.monotonic()
    recorder = GraphRecorder(table.tokens.device)
    graphs = GraphPasses(model, cache, table, ops, accept, constraining, buckets, recorder)
    drafts = DraftGraphs(drafter, table, buckets, recorder)
    torch.cuda.synchronize(table.tokens.device)
    count = len(buckets.decodes) + len(buckets.prompts)
    logger.info("CUDA graphs for %d step shapes captured in %.1f s", count, time.monotonic() - started)
    return drafts, graphs


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


def _cache_bytes(
    config: EngineConfig,
    model: Model,
    shape: ModelConfig,
    device: torch.device,
    budget: int,
    buckets: Buckets,
    cache_dtype: torch.dtype,
) -> int:
    if config.kv_cache_memory_gib is not None:
        return int(config.kv_cache_memory_gib * GIB)
    if device.type == "cpu":
        return int(DEFAULT_CPU_CACHE_GIB * GIB)
    rows = config.max_num_seqs
    peak = peak_bytes(
        model,
        shape,
        device,
        step_tokens=budget,
        block_size=config.block_size,
        max_rows=rows,
        cache_dtype=cache_dtype,
    ) + _graph_bytes(config, shape.vocab_size, model.dtype, buckets)
    return gpu_cache_bytes(device, config.gpu_memory_utilization, peak)
