"""A tiny random Llama in memory, and an engine core around it: real forward passes in about a millisecond."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from byte_compilers import byte_compiler
from fake_engine import ByteTokenizer
from random_checkpoint import RandomCheckpoint, llama

from draftline.engine.chat.messages import Chat
from draftline.engine.core import Core
from draftline.engine.drafting.cache import CachedDrafting, CacheNeeds, known_tokens, tokens_with_states
from draftline.engine.drafting.policy import DraftPolicy, FixedDrafting, ForcedTextDrafting
from draftline.engine.outputs import RequestOutput, Update
from draftline.engine.params import CONSTRAINT_KINDS, Constraint, SamplingParams, Speculation
from draftline.engine.protocol import EngineInfo, GenerateRequest
from draftline.engine.request.request import RequestBuilder
from draftline.engine.runner.eager import EagerExecutor
from draftline.engine.runner.executor import ExecutorParts, Executors
from draftline.engine.runner.masks import ConstraintMasks
from draftline.engine.runner.runner import Runner
from draftline.engine.runner.shapes import StepShapes
from draftline.engine.runner.timing import StepClock
from draftline.engine.scheduling.scheduler import Scheduler
from draftline.engine.scheduling.step_budget import StepBudget
from draftline.engine.scheduling.step_log import StepLog
from draftline.engine.streaming.accumulator import Accumulator
from draftline.engine.tools.output_reader import RequestReader
from draftline.kernels import select_ops
from draftline.kernels.batch import KVCache
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.slots import SlotTable
from draftline.models.config import ModelConfig
from draftline.models.families import build_model
from draftline.models.model import Model
from draftline.models.work import ModelWork
from draftline.spec.draft_model import ROUND_BEGINS_WITH, DraftModel
from draftline.spec.drafter import Drafter, WrappedDrafter
from draftline.spec.eagle3 import Eagle3, round_begins_with
from draftline.spec.forced import ForcedFirst
from draftline.spec.no_drafter import NoDrafter
from draftline.spec.synthetic import synthetic_acceptance as synthetic_acceptance_of
from draftline.structured.compiler import ConstraintCompiler

CONFIG = llama(eos_token_ids=(0,))


@functools.cache
def tiny_model(config: ModelConfig, seed: int = 0, noise: float = 0.0) -> Model:
    """The model of some random weights, all engines' in common. They take turns: no two may run steps at the same time."""
    device = torch.device("cpu")
    weights = RandomCheckpoint(config, std=0.3, seed=seed, noise=noise)
    return build_model(weights, config, select_ops(device), torch.float32, device)


def tiny_core(
    *,
    num_blocks: int = 64,
    block_size: int = 8,
    num_slots: int = 8,
    token_budget: int = 64,
    prefix_caching: bool = True,
    drafter: Drafter | None = None,
    steps_ahead: int = 0,
    policy: Callable[[DraftPolicy], DraftPolicy] = lambda drafting: drafting,
    synthetic_acceptance: float | None = None,
    config: ModelConfig = CONFIG,
    target: Model | None = None,
    constraints: ConstraintTable | None = None,
    compiler: ConstraintCompiler | None = None,
    budget: StepBudget | None = None,
    tool_format: str = "",
    reasoning: tuple[str, str] | None = None,
    scheduling: str = "fair",
    step_log: StepLog | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Core:
    """A core on the CPU in float32.

    A drafter with a cache must have one of ``num_blocks`` blocks. ``policy`` may put another policy in the place of
    always drafting as much as the drafter can. ``target`` may stand in for the random model of ``config``.
    """
    device, dtype = torch.device("cpu"), torch.float32
    ops, model = select_ops(device), target or tiny_model(config)
    config = model.config
    drafter = drafter or NoDrafter()
    max_len = min(config.max_positions, num_blocks * block_size)
    cache = KVCache.allocate(
        config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim, dtype=dtype, device=device
    )
    table_len = max_len + drafter.max_draft_tokens
    table = SlotTable.allocate(num_slots, table_len, -(-table_len // block_size), device, config.vocab_size)
    info = EngineInfo(
        model="tiny",
        config=config,
        eos_token_ids=config.eos_token_ids,
        quantization="F32",
        dtype="float32",
        device="cpu",
        max_model_len=max_len,
        max_num_seqs=num_slots,
        cache_blocks=num_blocks,
        block_size=block_size,
        drafters=(drafter.name,) if drafter.max_draft_tokens else (),
        constraint_kinds=CONSTRAINT_KINDS,
        system_fingerprint="fp_tiny",
        has_chat_template=True,
        max_token_bytes=4,
        synthetic_acceptance=synthetic_acceptance,
        tool_format=tool_format,
        shows_tools=bool(tool_format),
        reasoning=reasoning,
        scheduling=scheduling,
    )
    scheduler = Scheduler(
        num_blocks=num_blocks,
        block_size=block_size,
        num_slots=num_slots,
        token_budget=token_budget,
        max_model_len=max_len,
        prefix_caching=prefix_caching,
    )
    accept = ops.accept if synthetic_acceptance is None else synthetic_acceptance_of(ops.accept, synthetic_acceptance)
    constraints = constraints or free_constraints(num_slots, drafter.max_draft_tokens, vocab=config.vocab_size)
    needs = cache_needs(drafter)
    if needs is None:
        drafter = ForcedFirst(drafter, ops, constraints)
    shapes = StepShapes(num_slots, drafter.max_draft_tokens)
    step_clock = StepClock.of(ops, table.tokens.device)
    parts = ExecutorParts(model, cache, table, ops, drafter, ops.sample, accept, constraints, shapes, step_clock)
    masks = ConstraintMasks(constraints, table)
    runner = Runner(Executors(EagerExecutor(parts), shapes), table, masks, ops, config.eos_token_ids, parts.drafter)
    drafting: DraftPolicy = FixedDrafting(drafter.max_draft_tokens, num_slots)
    if drafter.max_draft_tokens:
        drafting = ForcedTextDrafting(drafting, drafter.max_draft_tokens, num_slots)
    drafting = policy(drafting)
    if needs is not None:
        drafting = CachedDrafting(
            drafting, scheduler.block_generation, block_size=block_size, step_tokens=token_budget, needs=needs
        )
    return Core(
        scheduler,
        runner,
        ByteTokenizer(),  # type: ignore[arg-type]
        info,
        drafting,
        budget=budget or StepBudget(token_budget, math.inf),
        compiler=compiler or byte_compiler(),
        work=ModelWork.of(model, dtype),
        steps_ahead=steps_ahead,
        step_log=step_log,
        clock=clock,
    )


def cache_needs(drafter: Drafter) -> CacheNeeds | None:
    """What the cache of a drafter needs; None without one."""
    if isinstance(drafter, WrappedDrafter):
        return cache_needs(drafter._other)
    if isinstance(drafter, Eagle3):
        positions = drafter._head.config.layer.max_positions
        return CacheNeeds(positions, round_begins_with(drafter.max_draft_tokens), tokens_with_states)
    if isinstance(drafter, DraftModel):
        return CacheNeeds(drafter._model.config.max_positions, ROUND_BEGINS_WITH, known_tokens)
    return None


def ticking(seconds: float = 1e-4) -> Callable[[], float]:
    """A core's clock that advances whenever it is read, so that a busy machine changes no order of requests."""
    return functools.partial(next, itertools.count(step=seconds))


def free_constraints(
    num_slots: int = 64, drafts: int = 4, *, words: int = 1 << 18, masks: int = 2000, vocab: int = CONFIG.vocab_size
) -> ConstraintTable:
    """A constraint table in which nothing is constrained."""
    return ConstraintTable.allocate(
        num_slots, vocab, words=words, masks=masks, samples=drafts + 1, device=torch.device("cpu")
    )


def draft_model(
    drafts: int,
    *,
    noise: float,
    seed: int = 0,
    num_blocks: int = 64,
    block_size: int = 8,
    config: ModelConfig = CONFIG,
    constraints: ConstraintTable | None = None,
) -> DraftModel:
    """A drafter that is the tiny model itself where ``noise`` is 0 and ``seed`` is too."""
    device, dtype = torch.device("cpu"), torch.float32
    ops, model = select_ops(device), tiny_model(config, seed, noise)
    cache = KVCache.allocate(
        config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim, dtype=dtype, device=device
    )
    return DraftModel(model, cache, ops, drafts, constraints or free_constraints(vocab=config.vocab_size))


class Client:
    """Submits to a core and collects what comes back."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.updates: list[tuple[str, Update]] = []
        self._accumulators: dict[str, Accumulator] = {}
        self._readers: dict[str, RequestReader] = {}
        self._builder = RequestBuilder(core.info, core.tokenizer, 5.0, core.compiler)

    def submit(
        self,
        name: str,
        prompt: Sequence[int] | Chat,
        sampling: SamplingParams,
        priority: int = 0,
        speculation: Speculation | None = None,
        constraint: Constraint | None = None,
        *,
        caller: str = "",
        weight: float = 1.0,
    ) -> None:
        """Queue a request called ``name``."""
        asked = prompt if isinstance(prompt, Chat) else tuple(prompt)
        wanted = GenerateRequest(
            asked, sampling, constraint, speculation or Speculation(), priority, caller=caller, weight=weight
        )
        prepared = self._builder.prepare(name, wanted)
        request = prepared.begin(self._sink, self.core.now())
        self._readers[name] = prepared.reader
        self._accumulators[name] = Accumulator(name, wanted, request.prompt_token_ids)
        self.core.add(request)

    def run(self, max_steps: int = 10_000) -> dict[str, RequestOutput]:
        """Step until everything has ended, checking all invariants after every step."""
        for _ in range(max_steps):
            if not self.core.has_work:
                return {name: accumulator.result() for name, accumulator in self._accumulators.items()}
            self.core.step()
            self.core.check()
        raise AssertionError(f"not finished after {max_steps} steps")

    def _sink(self, updates: Iterable[tuple[str, Update]]) -> None:
        for name, written in updates:
            for update in self._readers[name].read(written):
                self.updates.append((name, update))
                self._accumulators[name].take(update)


def alone(prompt: Sequence[int], sampling: SamplingParams, constraint: Constraint | None = None) -> RequestOutput:
    """What a request gives by itself, in an engine with room for everything. It runs once, however many tests ask."""
    key = repr((tuple(prompt), sampling, constraint, constraint and constraint.output_type))
    if key not in _alone:
        client = Client(tiny_core(token_budget=512))
        client.submit("alone", prompt, sampling, constraint=constraint)
        _alone[key] = client.run()["alone"]
    return _alone[key]


_alone: dict[str, RequestOutput] = {}
