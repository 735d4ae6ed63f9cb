"""A tiny random Llama in memory, and an engine core around it: real forward passes in about a millisecond."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from fake_engine import ByteTokenizer
from random_checkpoint import RandomCheckpoint, llama

from draftline.engine.accumulator import Accumulator
from draftline.engine.client import EngineInfo, GenerateRequest
from draftline.engine.core import Core
from draftline.engine.draft_cache import CachedDrafting
from draftline.engine.drafting import Drafting, FixedDrafting
from draftline.engine.outputs import RequestOutput, Update
from draftline.engine.params import SamplingParams, Speculation
from draftline.engine.pass_by_operation import PassByOperation
from draftline.engine.request import RequestBuilder
from draftline.engine.runner import Runner
from draftline.engine.scheduler import Scheduler
from draftline.kernels import select_ops
from draftline.kernels.batch import KVCache
from draftline.kernels.slots import SlotTable
from draftline.models.config import ModelConfig
from draftline.models.families import build_model
from draftline.spec.draft_model import DraftModel
from draftline.spec.drafter import Drafter
from draftline.spec.nothing import Nothing
from draftline.spec.synthetic import synthetic_acceptance as synthetic_acceptance_of

CONFIG = llama(eos_token_ids=(0,))


def tiny_core(
    *,
    num_blocks: int = 64,
    block_size: int = 8,
    num_slots: int = 8,
    token_budget: int = 64,
    prefix_caching: bool = True,
    drafter: Drafter | None = None,
    steps_ahead: int = 0,
    policy: Callable[[Drafting], Drafting] = lambda drafting: drafting,
    synthetic_acceptance: float | None = None,
    config: ModelConfig = CONFIG,
    beside_prompts: bool = True,
) -> Core:
    """A core on the CPU in float32.

    A drafter with a cache must have one of ``num_blocks`` blocks. ``policy`` may put another policy in the place of
    always drafting as much as the drafter can.
    """
    device, dtype = torch.device("cpu"), torch.float32
    ops = select_ops(device)
    model = build_model(RandomCheckpoint(config, std=0.3), config, ops, dtype, device)
    drafter = drafter or Nothing()
    max_len = min(config.max_positions, num_blocks * block_size)
    cache = KVCache.allocate(
        config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim, dtype=dtype, device=device
    )
    table_len = max_len + drafter.max_draft_tokens
    table = SlotTable.allocate(num_slots, table_len, -(-table_len // block_size), device)
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
        constraint_kinds=(),
        synthetic_acceptance=synthetic_acceptance,
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
    passes = [PassByOperation(model, cache, table, ops, drafter, accept)]
    runner = Runner(passes, drafter, table, ops, config.eos_token_ids)
    drafting = policy(FixedDrafting(drafter.max_draft_tokens, num_slots))
    if isinstance(drafter, DraftModel):
        drafting = CachedDrafting(
            drafting,
            scheduler.block_generation,
            block_size=block_size,
            step_tokens=token_budget,
            longest=config.max_positions,
            beside_prompts=beside_prompts,
        )
    return Core(scheduler, runner, ByteTokenizer(), info, drafting, steps_ahead=steps_ahead)  # type: ignore[arg-type]


def draft_model(
    drafts: int,
    *,
    noise: float,
    seed: int = 0,
    num_blocks: int = 64,
    block_size: int = 8,
    chunk_tokens: int = 24,
    config: ModelConfig = CONFIG,
) -> DraftModel:
    """A drafter that is the tiny model itself where ``noise`` is 0 and ``seed`` is too."""
    device, dtype = torch.device("cpu"), torch.float32
    ops = select_ops(device)
    model = build_model(RandomCheckpoint(config, std=0.3, seed=seed, noise=noise), config, ops, dtype, device)
    cache = KVCache.allocate(
        config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim, dtype=dtype, device=device
    )
    return DraftModel(model, cache, ops, drafts, chunk_tokens=chunk_tokens)


class Client:
    """Submits to a core and collects what comes back."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.updates: list[tuple[str, Update]] = []
        self._accumulators: dict[str, Accumulator] = {}
        self._builder = RequestBuilder(core.info, core.tokenizer, ageing_s=5.0)

    def submit(
        self,
        name: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        priority: int = 0,
        speculation: Speculation | None = None,
    ) -> None:
        """Queue a request called ``name``."""
        wanted = GenerateRequest(tuple(prompt), sampling, None, speculation or Speculation(), priority)
        request = self._builder.build(name, wanted, self._sink, self.core.now())
        self._accumulators[name] = Accumulator.of(request)
        self.core.add(request)

    def run(self, most_steps: int = 10_000) -> dict[str, RequestOutput]:
        """Step until everything has ended, checking all invariants after every step."""
        for _ in range(most_steps):
            if not self.core.has_work:
                return {name: accumulator.result() for name, accumulator in self._accumulators.items()}
            self.core.step()
            self.core.check()
        raise AssertionError(f"not finished after {most_steps} steps")

    def _sink(self, updates: Iterable[tuple[str, Update]]) -> None:
        for name, update in updates:
            self.updates.append((name, update))
            self._accumulators[name].take(update)


def alone(prompt: Sequence[int], sampling: SamplingParams) -> RequestOutput:
    """What a request gives by itself, in an engine with room for everything."""
    client = Client(tiny_core(token_budget=512))
    client.submit("alone", prompt, sampling)
    return client.run()["alone"]
