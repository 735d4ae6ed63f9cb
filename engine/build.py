"""From an `EngineConfig` to a `Core`: the one place where an engine's parts are chosen and put together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.drafting.build import with_embedded_draft
from draftline.engine.fingerprint import SystemFingerprint, engine_digest
from draftline.engine.loading import LoadedParts, engine_fork_problem, load_parts
from draftline.engine.parallel.sizes import Sizes, agree_on_blocks
from draftline.engine.parallel.target import Target
from draftline.engine.params import CONSTRAINT_KINDS
from draftline.engine.protocol import EngineInfo
from draftline.engine.request.language import configured_compiler
from draftline.engine.runner.capture import Captures
from draftline.engine.runner.device import cache_explained, device_name, device_uuids, rank_devices, select_device
from draftline.engine.runner.eager import EagerExecutor
from draftline.engine.runner.executor import Executor, ExecutorParts, Executors
from draftline.engine.runner.masks import ConstraintMasks
from draftline.engine.runner.memory import SMALLER_STEP, memory_explained, used_bytes
from draftline.engine.runner.peaks import peak_of
from draftline.engine.runner.runner import Runner
from draftline.engine.runner.shapes import StepShape
from draftline.engine.scheduling.scheduler import Scheduler
from draftline.engine.scheduling.step_budget import StepBudget
from draftline.engine.scheduling.step_log import StepLog
from draftline.engine.stats import MemoryUse
from draftline.engine.tools.formats import find_format, find_reasoning
from draftline.kernels import select_ops
from draftline.kernels.batch import Batch
from draftline.kernels.compile_workers import KernelCompileWorkers
from draftline.kernels.ops import Ops
from draftline.models.errors import ModelLoadError
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.models.work import ModelWork
from draftline.spec.drafter import Drafter
from draftline.structured.compiler import ConstraintCompiler

if TYPE_CHECKING:
    from draftline.kernels.triton.compile.ahead import CompileAhead
    from draftline.kernels.triton.compile.later import CompileLater
    from draftline.kernels.triton.compile.marks import CacheMark

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Substitutes:
    """Parts that a benchmark puts in the place of an engine's own, to measure these. No option offers them.

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
    prepare: Callable[[ConstraintCompiler], object] = lambda compiler: None,
) -> Core:
    """Load the model and put an engine together around it.

    Args:
        config: the engine's options.
        workers: processes that compile kernels, if they were started already. Else they are started where they save
            time.
        substitutes: parts to measure the engine without its own.
        prepare: prepares constraints, at a time when other processes may still compile kernels.

    Raises:
        ModelLoadError: the model cannot be loaded, or cannot be served with these options.
        OutOfMemoryAtStartError: it does not fit.
    """
    if problem := engine_fork_problem():
        raise ModelLoadError(problem)
    device = select_device(config)
    config = with_embedded_draft(config)
    with ExitStack() as undo, cache_explained():
        if device.type != "cuda" or not config.uses_graphs:
            core = _build(config, device, None, undo, substitutes, prepare)
        else:
            # Imported here, since a CPU runs without Triton.
            from draftline.kernels.triton.compile.ahead import CompileAhead

            with closing(CompileAhead(device, workers)) as ahead:
                core = _build(config, device, ahead, undo, substitutes, prepare)
        undo.pop_all()
    return core


def _build(
    config: EngineConfig,
    device: torch.device,
    ahead: CompileAhead | None,
    undo: ExitStack,
    substitutes: Substitutes,
    prepare: Callable[[ConstraintCompiler], object],
) -> Core:
    """Load the model, and put the engine together.

    Args:
        config: the engine's options.
        device: where it runs.
        ahead: compiles the kernels of CUDA graphs; None where there are no graphs.
        undo: gets what has to end if this fails.
        substitutes: parts that take the place of the engine's own.
        prepare: prepares constraints.
    """
    started = time.monotonic()
    loaded = load_parts(config, device, ahead, undo, substitutes.ops)
    target = loaded.target
    devices = rank_devices(device, config.tensor_parallel_size)
    fingerprint = SystemFingerprint.of(
        devices,
        dtype=target.dtype,
        weights=target.model.quantization,
        conversion=config.quantization,
        cache_dtype=target.cache_dtype,
    )
    facts = (fingerprint.facts, repr(target.shape), *loaded.drafting.facts)

    # The largest step bounds the memory of activations. Its kernels are compiled before it runs, those of graphs with
    # it.
    largest = target.largest_batch()
    if ahead is not None:
        mark = _rehearse(loaded, ahead, largest, facts)
    # This is done while other processes compile.
    tokenizer = loaded.tokenizer()
    compiler = configured_compiler(config, tokenizer, target.shape)
    undo.callback(compiler.close)
    compiler.start()
    prepare(compiler)
    if ahead is not None:
        later = _load_kernels(loaded, ahead, mark)

    # The cache and the graphs take the memory that the weights and the largest step leave.
    sizes = agree_on_blocks(
        target,
        loaded.group,
        largest,
        loaded.build_drafter,
        loaded.shapes,
        drafter_block_bytes=loaded.drafting.block_bytes,
    )
    loaded = replace(loaded, shapes=sizes.shapes)
    parts = loaded.allocate(sizes.blocks, sizes.max_model_len)
    used = used_bytes(device)
    graphs, captures = ({}, Captures()) if ahead is None else _capture(loaded, parts)
    memory = MemoryUse(
        weights=loaded.weight_bytes,
        cache=sizes.blocks * (target.block_bytes + loaded.drafting.block_bytes),
        activations=sizes.activation_bytes(loaded.weight_bytes),
        graphs=max(0, used_bytes(device) - used),
    )
    loaded.ranks.wait_until_ready()

    # From here on steps can run. The policy measures some, to know what drafts cost.
    scheduler = Scheduler(
        num_blocks=sizes.blocks,
        block_size=config.block_size,
        num_slots=config.max_num_seqs,
        token_budget=target.step_tokens,
        max_model_len=sizes.max_model_len,
        prefix_caching=config.prefix_caching,
    )
    runner = Runner(
        Executors(EagerExecutor(parts), loaded.shapes, graphs, target.uneven(parts.table, parts.cache)),
        parts.table,
        ConstraintMasks(parts.constraints, parts.table),
        target.ops,
        tokenizer.all_eos_ids(target.shape),
        parts.drafter,
        loaded.ranks,
        captures,
    )
    policy = loaded.drafting.build_policy(
        runner,
        parts.table,
        loaded.shapes,
        generation=scheduler.block_generation,
        step_tokens=target.step_tokens,
        facts=facts,
        blocks=sizes.blocks,
    )
    info = _engine_info(
        target, devices, tokenizer, parts.drafter, sizes, memory, fingerprint, loaded.drafting.step_costs
    )
    logger.info(
        "%s ready in %.1f s: %s weights, %s on %s, %d cache blocks of %d tokens",
        info.model, time.monotonic() - started, info.quantization, info.dtype, info.device, info.cache_blocks, info.block_size,
    )  # fmt: skip
    logger.info("system fingerprint %s: %s", fingerprint, fingerprint.facts)
    steps_ahead = substitutes.steps_ahead
    if steps_ahead is None:
        steps_ahead = int(device.type == "cuda")  # on a CPU, host and device work would not overlap
    if ahead is not None:
        later.start()  # only now: the start has measured how long steps take
    return Core(
        scheduler,
        runner,
        tokenizer,
        info,
        policy,
        budget=StepBudget(target.step_tokens, config.inter_token_target),
        compiler=compiler,
        work=ModelWork.of(target.model, target.cache_dtype),
        steps_ahead=steps_ahead,
        step_log=StepLog() if config.log_steps else None,
        kernels_compiling=(lambda: 0) if ahead is None else later.left,
    )


# The three steps of a start that only CUDA graphs need. They import what needs Triton.


def _rehearse(loaded: LoadedParts, ahead: CompileAhead, largest: Batch, facts: tuple[str, ...]) -> CacheMark:
    """Let other processes compile the kernels of the largest step and of graphs.

    Returns:
        The mark of an engine with these facts, to be set once its kernels are compiled.
    """
    from draftline.engine.runner.warmup import rehearse
    from draftline.kernels.triton.compile.marks import CacheMark

    target = loaded.target
    mark = CacheMark(engine_digest(target.config, facts))
    # Most graphs are captured once requests come, which must not wait for a compiler. Several ranks capture all of them
    # now.
    every = loaded.group is None and not mark.is_set()
    with _largest_step_explained(target.device):
        rehearse(loaded.allocate(1, target.max_len), ahead, largest, every=every)
    return mark


def _load_kernels(loaded: LoadedParts, ahead: CompileAhead, mark: CacheMark) -> CompileLater:
    """Wait for these kernels, and load them. Returns those to be compiled once the engine serves."""
    from draftline.engine.runner.warmup import load_kernels

    target = loaded.target
    with _largest_step_explained(target.device):
        later = load_kernels(target.ops, ahead, target.device)
    mark.set()
    if loaded.group is not None:
        loaded.group.barrier()  # ranks with a part of the same size find their kernels now
    return later


def _largest_step_explained(device: torch.device) -> AbstractContextManager[None]:
    return memory_explained(device, "the largest step", helps=SMALLER_STEP)


def _capture(loaded: LoadedParts, parts: ExecutorParts) -> tuple[dict[StepShape, Executor], Captures]:
    """The graphs, and those that are left to be captured when there is time."""
    from draftline.engine.runner.graphs.step_graphs import steps_in_parts, whole_steps
    from draftline.engine.runner.warmup import capture_graphs

    with memory_explained(loaded.target.device, "the CUDA graphs"):
        graphs, captures = capture_graphs(parts, whole_steps if loaded.group is None else steps_in_parts)
    if loaded.group is not None:
        captures.capture_all()  # no rank knows when the others have time
    return graphs, captures


def _engine_info(
    target: Target,
    devices: tuple[torch.device, ...],
    tokenizer: Tokenizer,
    drafter: Drafter,
    sizes: Sizes,
    memory: MemoryUse,
    fingerprint: SystemFingerprint,
    step_costs: tuple[tuple[int, int, float], ...],
) -> EngineInfo:
    """The description of an engine, for its callers."""
    config = target.config
    return EngineInfo(
        model=config.model,
        config=target.shape,
        eos_token_ids=tokenizer.all_eos_ids(target.shape),
        quantization=target.model.quantization,
        dtype=fingerprint.dtype,
        device=str(target.device),
        max_model_len=sizes.max_model_len,
        max_num_seqs=config.max_num_seqs,
        cache_blocks=sizes.blocks,
        block_size=config.block_size,
        drafters=(drafter.name,) if drafter.max_draft_tokens else (),
        constraint_kinds=CONSTRAINT_KINDS,
        system_fingerprint=str(fingerprint),
        has_chat_template=tokenizer.has_chat_template,
        max_token_bytes=tokenizer.max_token_bytes,
        synthetic_acceptance=config.synthetic_acceptance,
        tool_format=find_format(config.tool_format, tokenizer.chat_template, shows_tools=tokenizer.shows_tools),
        reasoning=find_reasoning(tokenizer.chat_template),
        shows_tools=tokenizer.shows_tools,
        scheduling=config.scheduling,
        peak=peak_of(device_name(target.device), target.model.quantization),
        memory=memory,
        device_uuids=device_uuids(devices),
        step_costs=step_costs,
    )
