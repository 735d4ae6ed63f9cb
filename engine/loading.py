"""``LoadedParts``: the parts of an engine that come from files, before its cache has a size.

The order matters: errors that are known early come before the weights are read, and what takes long runs meanwhile.
`build` sizes the cache and puts the engine together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch

from draftline.engine.config import EngineConfig
from draftline.engine.drafting.build import DrafterBuilder
from draftline.engine.errors import fork_problem
from draftline.engine.parallel.group import RankGroup
from draftline.engine.parallel.leader import StartedRanks, start_ranks
from draftline.engine.parallel.target import Target
from draftline.engine.request.language import configured_tokenizer
from draftline.engine.runner.device import check_weights
from draftline.engine.runner.executor import ExecutorParts
from draftline.engine.runner.memory import memory_explained, taken_bytes
from draftline.engine.runner.shapes import StepShapes
from draftline.kernels.collectives import ALONE
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Ops
from draftline.models.loader import open_checkpoint
from draftline.models.parallel.shard import WHOLE, PartialShard
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.spec.drafter import Drafter

if TYPE_CHECKING:
    from draftline.kernels.triton.compile.ahead import CompileAhead

logger = logging.getLogger(__name__)

_CONSTRAINT_BYTES = 64 << 20
"""Bytes for automata's tables, and as many for their masks. On a CPU, memory is only taken where it is written."""


def engine_fork_problem() -> str | None:
    """What is wrong with an engine here if this is a fork of a process that had loaded a model; None if it is not.

    That holds for the parent's engine and for a new one: torch's threads are missing too. `build_core` asks before it
    loads the first model.
    """
    return fork_problem("loaded a model", "load models")


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """The parts of an engine that do not depend on the size of its cache.

    Attributes:
        target: the target model.
        ranks: the other ranks.
        group: all ranks; None if there is only this one.
        tokenizer: the model's, loaded at the first call.
        drafting: the drafter, without its cache.
        shapes: the step shapes that have graphs.
        constraints: the constraint table.
        weight_bytes: memory of the model's and the draft model's weights.
    """

    target: Target
    ranks: StartedRanks
    group: RankGroup | None
    tokenizer: Callable[[], Tokenizer]
    drafting: DrafterBuilder
    shapes: StepShapes
    constraints: ConstraintTable
    weight_bytes: int

    def allocate(self, blocks: int, max_model_len: int) -> ExecutorParts:
        """Allocate the cache, the drafter's cache and the slot table.

        Args:
            blocks: cache blocks.
            max_model_len: the most tokens of a sequence.
        """
        return self.target.allocate(
            blocks,
            max_model_len,
            self.shapes,
            self.constraints,
            self.target.ops.sample,
            self.build_drafter,
            self.drafting.block_bytes,
        )

    def build_drafter(self, blocks: int) -> Drafter:
        """The drafter, with a cache of ``blocks`` blocks."""
        return self.drafting.build(blocks, self.constraints)


def load_parts(
    config: EngineConfig,
    device: torch.device,
    ahead: CompileAhead | None,
    undo: ExitStack,
    make_ops: Callable[[torch.device, str], Ops],
) -> LoadedParts:
    """Load tokenizer, model and drafter.

    Args:
        config: the engine's options.
        device: where it runs.
        ahead: compiles the kernels of CUDA graphs; None where there are no graphs.
        undo: gets what has to end if a later part fails.
        make_ops: makes the operations of a device.

    Raises:
        ModelLoadError: the model cannot be loaded, or cannot be served with these options.
        OutOfMemoryAtStartError: it does not fit.
    """
    checkpoint = open_checkpoint(
        config.model, load_format=config.load_format, quantization=config.quantization, device=device
    )
    check_weights(config.model, checkpoint, device, "quantization")
    shape = checkpoint.config
    ranks = start_ranks(config, shape, device)  # they load while this process does
    undo.push(ranks)
    tokenizer = cache(partial(configured_tokenizer, config, shape))
    if ahead is None or not ahead.missing:
        tokenizer()  # its errors come before the weights are read. Otherwise it is loaded while kernels are compiled
    ops = make_ops(device, config.kernels)
    group = ranks.join()
    taken = taken_bytes(device)
    shard = WHOLE if group is None else PartialShard.of(shape, group.collectives)
    target = Target.load(config, checkpoint, device, ops, shard)
    collectives = ALONE if group is None else group.collectives
    drafting = DrafterBuilder(config, checkpoint, ops, target.dtype, device, collectives)
    on_gpu = taken_bytes(device) - taken
    if group is not None:
        group.least([drafting.max_draft_tokens, -max(drafting.read_layers, default=0)])
    constraints = _constraint_table(config, shape.vocab_size, drafting.max_draft_tokens, device)
    if config.synthetic_acceptance is not None:
        logger.warning(
            "synthetic acceptance of %g: drafts are accepted by chance, and all outputs mean nothing",
            config.synthetic_acceptance,
        )
    return LoadedParts(
        target=target,
        ranks=ranks,
        group=group,
        tokenizer=tokenizer,
        drafting=drafting,
        shapes=target.shapes(drafting.max_draft_tokens),
        constraints=constraints,
        weight_bytes=on_gpu if device.type == "cuda" else target.model.nbytes,
    )


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
