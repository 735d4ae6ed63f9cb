"""The drafter that an `EngineConfig` asks for, and its draft policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import torch

from draftline.engine.config import EngineConfig
from draftline.engine.drafting.cache import CachedDrafting
from draftline.engine.drafting.cost_cache import cached_costs
from draftline.engine.drafting.costs import (
    Costs,
    caught_up_tokens,
    measure_catch_up,
    measure_costs,
    measured_context,
    own_blocks,
)
from draftline.engine.drafting.loaded import load_draft
from draftline.engine.drafting.policy import AdaptiveDrafting, DraftPolicy, FixedDrafting, ForcedTextDrafting
from draftline.engine.runner.memory import memory_explained
from draftline.engine.runner.runner import Runner
from draftline.engine.runner.shapes import StepShapes
from draftline.kernels.collectives import ALONE, Collectives
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.checkpoints.resolve import EMBEDDED_MODELS
from draftline.spec.adaptive import DraftBudgets
from draftline.spec.draft_model import DraftModel
from draftline.spec.drafter import Drafter
from draftline.spec.forced import ForcedDrafter, ForcedFirst
from draftline.spec.ngram import NGram
from draftline.spec.ngram_table import NGramTable
from draftline.spec.no_drafter import NoDrafter
from draftline.spec.step_costs import NO_CATCH_UP, CatchUpCost, CostTable, RaggedCostTable
from draftline.structured.cache_files import user_cache_folder

MakeDrafter = Callable[[EngineConfig, Ops, ConstraintTable, torch.device], Drafter]
"""Makes a drafter that has no weights."""

DRAFTERS: Mapping[str, MakeDrafter] = {
    NoDrafter.name: lambda config, ops, constraints, device: NoDrafter(),
    ForcedDrafter.name: lambda config, ops, constraints, device: ForcedDrafter(config.draft_tokens, ops, constraints),
    NGram.name: lambda config, ops, constraints, device: ForcedFirst(NGram(config.draft_tokens, ops), ops, constraints),
    NGramTable.name: lambda config, ops, constraints, device: ForcedFirst(
        NGramTable(config.draft_tokens, config.ngram_entries, ops, device), ops, constraints
    ),
}
"""The drafters without weights, by the option ``drafter``."""

_CPU_COST_ROWS = (1, 4, 8)
"""Row counts that a CPU's steps are timed for. With more rows it does not draft."""

_COST_ROUNDS, _GRAPH_COST_ROUNDS = 3, 5
"""How often each step is timed. With graphs a step is short, and what disturbs it is a large part of it."""


def with_embedded_draft(config: EngineConfig) -> EngineConfig:
    """The options with the draft of an embedded model, where they leave the choice."""
    embedded = EMBEDDED_MODELS.get(config.model)
    if embedded is None or config.drafter != "auto" or config.draft_model is not None:
        return config
    return config.model_copy(update={"draft_model": embedded.draft})


class DrafterBuilder:
    """Loads a drafter's weights; then, once the number of its cache's blocks is known, builds it and its policy.

    Attributes:
        max_draft_tokens: the most that it will draft at once.
        block_bytes: bytes of one block of its cache, 0 without one.
        read_layers: the target's hidden states that it reads; see `HiddenStateSink.layers`.
        facts: what its kernels and their duration depend on besides the engine's options.
        step_costs: what `build_policy` has measured; see `EngineInfo`.
    """

    def __init__(
        self,
        config: EngineConfig,
        target: Checkpoint,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
        collectives: Collectives = ALONE,
    ) -> None:
        """Choose the drafter, and load its weights if it has any, or this rank's part of them.

        Args:
            config: the engine's options.
            target: the target's checkpoint.
            ops: the device's operations.
            dtype: of the target's weights.
            device: the target's.
            collectives: of the ranks that may share a draft model.

        Raises:
            ModelLoadError: the draft model cannot be loaded, or cannot draft for this target.
        """
        self._config, self._ops, self._device = config, ops, device
        self._by_graphs = device.type == "cuda" and config.uses_graphs
        self._draft = (
            None if config.draft_model is None else load_draft(config, target, ops, dtype, device, collectives)
        )
        self._name = _chosen(config, device)
        self.max_draft_tokens = 0 if self._name == NoDrafter.name else config.draft_tokens
        self.block_bytes = 0 if self._draft is None else self._draft.block_bytes(config.block_size)
        self.read_layers = () if self._draft is None else self._draft.read_layers
        self.facts = () if self._draft is None else self._draft.facts
        self._needs = None if self._draft is None else self._draft.needs(config.draft_tokens)
        self.step_costs: tuple[tuple[int, int, float], ...] = ()

    def build(self, blocks: int, constraints: ConstraintTable) -> Drafter:
        """The drafter, which knows what ``constraints`` force.

        Args:
            blocks: how many blocks its cache has, if it needs one.
            constraints: the constraint table.
        """
        if self._draft is None:
            return DRAFTERS[self._name](self._config, self._ops, constraints, self._device)
        with memory_explained(self._device, "the draft model's cache"):
            return self._draft.build(self._config, blocks, self._ops, constraints)

    def build_policy(
        self,
        runner: Runner,
        table: SlotTable,
        shapes: StepShapes,
        *,
        generation: Callable[[int], int],
        step_tokens: int,
        facts: tuple[str, ...],
        blocks: int,
    ) -> DraftPolicy:
        """The policy that chooses draft lengths.

        Args:
            runner: launches steps, which are timed where costs decide.
            table: the slot table, unused yet.
            shapes: the step shapes that have graphs.
            generation: how often a cache block has been allocated.
            step_tokens: the most tokens that one step computes.
            facts: what the duration of steps depends on besides the engine's options, `facts` among it.
            blocks: how many the cache has.
        """
        if not self.max_draft_tokens:
            return DraftPolicy()
        policy: DraftPolicy = ForcedTextDrafting(
            self._lengths(runner, table, shapes, facts, blocks), self.max_draft_tokens, shapes.max_drafting_rows
        )
        if self._needs is None:
            return policy
        return CachedDrafting(
            policy,
            generation,
            block_size=self._config.block_size,
            step_tokens=step_tokens,
            needs=self._needs,
        )

    def _lengths(
        self, runner: Runner, table: SlotTable, shapes: StepShapes, facts: tuple[str, ...], blocks: int
    ) -> DraftPolicy:
        """The policy that chooses how many tokens to draft, apart from those that a constraint forces."""
        config, needs = self._config, self._needs
        if self._name == ForcedDrafter.name:
            return DraftPolicy()
        if config.draft_length == "fixed":
            return FixedDrafting(self.max_draft_tokens, shapes.max_drafting_rows)
        if needs is not None:
            longest = min(table.tokens.shape[1] - self.max_draft_tokens, needs.max_positions)
            if longest < needs.round_begins_with + self.max_draft_tokens:  # no sequence ever drafts as much
                return DraftPolicy()
        few = tuple(count for count in _CPU_COST_ROWS if count <= config.max_num_seqs)
        rows = shapes.drafting_rows if self._by_graphs else few
        budgets = self._budgets(runner, table, rows, shapes.draft_lens, facts, blocks)
        return AdaptiveDrafting(budgets, self.max_draft_tokens, rows[-1])

    def _budgets(
        self,
        runner: Runner,
        table: SlotTable,
        rows: tuple[int, ...],
        draft_lens: tuple[int, ...],
        facts: tuple[str, ...],
        blocks: int,
    ) -> DraftBudgets:
        """Measure how long steps and catching up take, or read it from the cache, and make what chooses by that."""
        needs = self._needs
        known = measured_context(table, self.max_draft_tokens, None if needs is None else needs.max_positions)
        caught_up = () if needs is None else caught_up_tokens(known)
        rounds = _GRAPH_COST_ROUNDS if self._by_graphs else _COST_ROUNDS

        def measure() -> Costs:
            tokens = known + self.max_draft_tokens
            with own_blocks(runner, table, rows[-1], tokens, self._config.block_size, blocks):
                return {
                    **measure_costs(runner, table, known, rows, draft_lens, rounds),
                    **measure_catch_up(runner, table, known, caught_up, rounds),
                }

        shapes = [*product(rows, draft_lens), *[(0, tokens) for tokens in caught_up]]
        costs = cached_costs(self._config, facts, user_cache_folder("step-costs"), shapes, measure)
        # Costs of no rows are those of catching up; see `Costs`.
        steps = {shape: seconds for shape, seconds in costs.items() if shape[0]}
        self.step_costs = tuple([(*shape, seconds) for shape, seconds in sorted(steps.items())])
        of_steps = CostTable(steps) if self._by_graphs else RaggedCostTable(steps)
        few_many = [(tokens, costs[0, tokens]) for tokens in caught_up]
        catch_up = CatchUpCost.through(*few_many) if few_many else NO_CATCH_UP
        return DraftBudgets(of_steps, catch_up)


def _chosen(config: EngineConfig, device: torch.device) -> str:
    if config.drafter != "auto":
        return config.drafter
    if config.draft_model is not None:
        return DraftModel.name
    return NGram.name if device.type == "cpu" else NoDrafter.name
