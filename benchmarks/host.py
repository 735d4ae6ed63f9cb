"""The host's time of a decode step: planning, launching, reading, detokenizing and delivering, without a device.

    python benchmarks/host.py
    python benchmarks/host.py --rows 1,256 --variants plain,stop --best-of 9

While the device computes one step, the host processes the previous one and launches the next. If that takes less time
than the device's step, the host costs nothing. This benchmark shows from which step size on that holds. The engine is
the real one, one step ahead as on a GPU, but without the device: the executor writes the inputs of a graph as the real
one does, and returns tokens that were sampled beforehand. The time of a step is the mean over a window of steps, so
work that comes up once a block of tokens has its share. So has a rare probe without drafts. *Not* measured: the time of
a GPU's driver for graphs and copies, and the server's work.

The variants `read-text` and `read-call` measure another thread's work: the receiver's, which reads the deltas of chats
with tools, before a call and inside one.

Results are JSON lines, on standard output or in --output; a table of them goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.arguments import add_output, positive_int, positive_ints
from rich.table import Table
from typing_extensions import override

from draftline.engine.bench.batches import OfflineWorkload
from draftline.engine.bench.contenders.placeholder_tokenizer import write_placeholder_tokenizer
from draftline.engine.bench.contenders.shapes import SMOLLM2_135M
from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.provenance import conditions
from draftline.engine.chat.calls import Tool
from draftline.engine.chat.messages import Chat
from draftline.engine.cli.bench.output import console
from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.drafting.cache import CachedDrafting, CacheNeeds, tokens_with_states
from draftline.engine.drafting.policy import AdaptiveDrafting, DraftPolicy, ForcedTextDrafting
from draftline.engine.outputs import Delta, Update
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import EngineInfo, GenerateRequest
from draftline.engine.request.constraints import structured_constraint
from draftline.engine.request.language import configured_compiler
from draftline.engine.request.request import RequestBuilder
from draftline.engine.request.sequence import Row
from draftline.engine.runner.executor import Executor, Executors, ForwardResult, SampleResult, WholeStep
from draftline.engine.runner.graphs.inputs import draft_words, fill_chunks, fill_drafts, fill_forward, forward_words
from draftline.engine.runner.masks import ConstraintMasks
from draftline.engine.runner.runner import Runner
from draftline.engine.runner.shapes import StepShapes
from draftline.engine.runner.slot_writer import STEP_WRITES, TableWrites, write_words
from draftline.engine.runner.timing import END
from draftline.engine.scheduling.scheduler import Scheduler
from draftline.engine.scheduling.step_budget import StepBudget
from draftline.engine.tools.formats import FORMATS
from draftline.engine.tools.output_reader import OutputReader
from draftline.engine.tools.plan import plan_chat
from draftline.kernels import select_ops
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.slots import SamplingFeatures, SlotTable
from draftline.models.families import config_from_hf
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.models.work import ModelWork
from draftline.spec.adaptive import DraftBudgets
from draftline.spec.drafter import DraftChunk
from draftline.spec.eagle3 import round_begins_with
from draftline.spec.no_drafter import NoDrafter
from draftline.spec.step_costs import CostTable
from draftline.structured.constraint import language
from draftline.structured.tags.walk import TagReader

BLOCK_SIZE = 16
WINDOW = 8 * BLOCK_SIZE
"""Steps that are timed together: every row reaches the end of a block equally often in them."""

_WARM_UP_STEPS = 4
_PROMPT_LEN = (97, 112)
"""The lengths span a block, so that rows reach its end in different steps."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The parameters of the requests, and the options of the engine.

    Attributes:
        sampling: the sampling parameters of every request, except for its length.
        prefix_caching: whether full blocks enter the prefix tree.
        drafts: drafts of each row in each step, chosen and learned from as those of a head; 0 drafts nothing.
    """

    sampling: SamplingParams
    prefix_caching: bool = False
    drafts: int = 0


_GREEDY = SamplingParams(temperature=0, ignore_eos=True)

VARIANTS = {
    "plain": Variant(_GREEDY),
    "prefix": Variant(_GREEDY, prefix_caching=True),
    "stop": Variant(_GREEDY.model_copy(update={"stop": ("\n\nQuestion:",)})),
    "sampling": Variant(_GREEDY.model_copy(update={"temperature": 0.7, "top_p": 0.9})),
    "drafts": Variant(_GREEDY, drafts=4),
}
"""Greedy; greedy with the prefix cache; greedy with a stop string that never occurs; nucleus sampling; greedy with drafts."""

_WEATHER = Tool("weather", "", '{"type": "object", "properties": {"city": {"type": "string"}}}')

READINGS = {"read-text": "", "read-call": FORMATS["hermes"].begin(_WEATHER.name) + '{"city": "'}
"""Deltas of chats with tools, by the text that they follow."""

_WORDS = 2000
"""The different tokens of a text."""


_ACCEPTED = (0, 2, 1, 4, 0, 1)
"""How many drafts a row accepts, in turns."""


class NoDevice(Executor, WholeStep):
    """The host's part of an executor of graphs, of whole steps that draft, too.

    Each row gets the same token in every step without drafts.
    """

    drafts = True

    def __init__(self, max_rows: int, max_drafts: int, vocab_size: int) -> None:
        """Draw the tokens."""
        self._max_rows = max_rows
        self._inputs = np.zeros(forward_words(max_rows), np.int64)
        self._draft_inputs = np.zeros(draft_words(max_rows), np.int64)
        self._writes = np.zeros(write_words(STEP_WRITES), np.int64)
        draw = torch.Generator().manual_seed(0)
        self._tokens = torch.randint(vocab_size, (max_rows * (max_drafts + 1),), generator=draw)
        self._accepted = torch.ones(max_rows, dtype=torch.int64)
        self._turns = cycle(_ACCEPTED)
        self._moments = torch.zeros(END + 1, dtype=torch.int64)
        nothing = torch.empty(0, dtype=torch.int64)
        self._no_logits = ForwardResult(torch.empty(0, vocab_size), nothing, nothing)

    @override
    def catch_up(self, chunks: Sequence[DraftChunk]) -> None:
        fill_chunks(self._inputs, self._max_rows, chunks)

    @override
    def whole_step(self, features: SamplingFeatures) -> NoDevice:
        return self

    @override
    def launch(self, rows: tuple[Row, ...], writes: TableWrites) -> tuple[ForwardResult, SampleResult]:
        if any(row.drafts for row in rows):
            self.draft(rows)
        result = self.forward(rows)
        writes.fill(self._writes, STEP_WRITES)
        return result, self.sample(rows, result, SamplingFeatures.NONE)

    @override
    def draft(self, rows: tuple[Row, ...]) -> None:
        fill_drafts(self._draft_inputs, self._max_rows, rows)

    @override
    def forward(self, rows: tuple[Row, ...]) -> ForwardResult:
        fill_forward(self._inputs, self._max_rows, rows)
        return self._no_logits

    @override
    def sample(self, rows: tuple[Row, ...], result: ForwardResult, features: SamplingFeatures) -> SampleResult:
        samples = [row.samples for row in rows]
        if any(row.drafts for row in rows):
            kept = [min(row.samples, 1 + accepted) for row, accepted in zip(rows, self._turns, strict=False)]
            return self._of(samples, torch.tensor(kept))
        decodes = sum(samples) == len(rows)
        return self._of(samples, self._accepted[: len(rows)] if decodes else torch.tensor(samples))

    def _of(self, samples: Sequence[int], kept: torch.Tensor) -> SampleResult:
        tokens = self._tokens[: sum(samples)]
        return SampleResult(tokens, tokens, kept, self._moments)


def hostbound_core(
    tokenizer: Tokenizer, max_rows: int, max_model_len: int, prefix_caching: bool, drafts: int = 0
) -> Core:
    """An engine with room for ``max_rows`` requests of ``max_model_len`` tokens, which draft ``drafts``, and no device."""
    config = config_from_hf(SMOLLM2_135M)
    blocks_a_row = -(-max_model_len // BLOCK_SIZE)
    info = EngineInfo(
        model="none",
        config=config,
        eos_token_ids=config.eos_token_ids,
        quantization="none",
        dtype="none",
        device="none",
        max_model_len=max_model_len,
        max_num_seqs=max_rows,
        cache_blocks=max_rows * blocks_a_row,
        block_size=BLOCK_SIZE,
        drafters=("parallel_head",) if drafts else (),
        constraint_kinds=(),
        system_fingerprint="none",
        has_chat_template=False,
        max_token_bytes=1,
    )
    scheduler = Scheduler(
        num_blocks=info.cache_blocks,
        block_size=BLOCK_SIZE,
        num_slots=max_rows,
        token_budget=8192,
        max_model_len=max_model_len,
        prefix_caching=prefix_caching,
    )
    device = torch.device("cpu")
    table = SlotTable.allocate(max_rows, max_model_len, blocks_a_row, device)
    nothing = ConstraintTable.allocate(max_rows, config.vocab_size, words=1024, masks=1, samples=1, device=device)
    masks = ConstraintMasks(nothing, table)
    executors = Executors(NoDevice(max_rows, drafts, config.vocab_size), StepShapes(max_rows, drafts))
    runner = Runner(executors, table, masks, select_ops(device), config.eos_token_ids, NoDrafter())
    policy = _drafting(max_rows, drafts, scheduler) if drafts else DraftPolicy()
    return Core(
        scheduler,
        runner,
        tokenizer,
        info,
        policy,
        budget=StepBudget(8192, math.inf),
        compiler=configured_compiler(EngineConfig(), tokenizer, config),
        work=ModelWork(config, 0.0, torch.bfloat16),
        steps_ahead=1,
    )


def _drafting(max_rows: int, drafts: int, scheduler: Scheduler) -> DraftPolicy:
    """The policy of a head whose drafts cost so little that all rows have ``drafts`` of them, in steps as short as a small model's."""
    costs = CostTable({(rows, drafted): 1e-3 + 1e-9 * drafted for rows in (1, max_rows) for drafted in (0, drafts)})
    policy: DraftPolicy = AdaptiveDrafting(DraftBudgets(costs, prior=0.6), drafts, max_rows)
    return CachedDrafting(
        ForcedTextDrafting(policy, drafts, max_rows),
        scheduler.block_generation,
        block_size=BLOCK_SIZE,
        step_tokens=8192,
        needs=CacheNeeds(1 << 30, round_begins_with(drafts), tokens_with_states),
    )


def measure(
    variant: Variant, tokenizer: Tokenizer, rows: int, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The seconds a step with ``rows`` decoding rows, for each round."""
    output_len = (2 * _WARM_UP_STEPS + (rounds + 1) * WINDOW) * (variant.drafts + 1)
    workload = OfflineWorkload("decode", rows, _PROMPT_LEN, (output_len, output_len))
    core = hostbound_core(tokenizer, rows, workload.max_model_len, variant.prefix_caching, variant.drafts)
    builder = RequestBuilder(core.info, tokenizer, 0.0, core.compiler)
    sampling = variant.sampling.model_copy(update={"max_tokens": output_len})

    def sink(updates: Sequence[tuple[str, Update]]) -> None:
        """Not measured: the work of the server."""

    for index, request in enumerate(workload.draw(core.info.config.vocab_size)):
        wanted = GenerateRequest(request.prompt, sampling)
        core.add(builder.build(str(index), wanted, sink, core.now()))
    while core.stats().generated_tokens < rows * _WARM_UP_STEPS:
        core.step()
    seconds: list[float] = []
    for _ in range(rounds):
        start = clock()
        for _ in range(WINDOW):
            core.step()
        seconds.append((clock() - start) / WINDOW)
    return seconds


def measure_reading(
    begin: str, tokenizer: Tokenizer, rows: int, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The seconds that reading one delta of each of ``rows`` outputs takes their receiver, for each round."""
    chat = Chat([("user", "")], tools=[_WEATHER])
    info = replace(hostbound_core(tokenizer, 1, BLOCK_SIZE, False).info, tool_format="hermes")
    plan = plan_chat(GenerateRequest(chat), info, str)
    assert plan.constraint is not None, "a chat with tools has one"
    form = language(structured_constraint(plan.constraint)).form
    assert form is not None, "it is a structural tag"
    tags = TagReader(form)
    readers = [OutputReader(plan.reading, tags, is_json=False, token_bytes=tokenizer.token_bytes) for _ in range(rows)]
    for reader in readers:
        reader.delta(Delta(0, (), begin))
    draw = np.random.default_rng(0)
    seconds: list[float] = []
    for _ in range(rounds):
        tokens = draw.integers(256, 256 + _WORDS, (WINDOW, rows)).tolist()
        steps = [[Delta(0, (token,), tokenizer.token_bytes(token).decode()) for token in step] for step in tokens]
        start = clock()
        for step in steps:
            for reader, delta in zip(readers, step, strict=True):
                reader.delta(delta)
        seconds.append((clock() - start) / WINDOW)
    return seconds


def result(variant: str, rows: int, seconds: Sequence[float]) -> dict[str, Any]:
    """The fields of a line: one variant with one number of decoding rows.

    ``us_per_step`` are the microseconds a step in the best round: disturbances only make a round slower.
    """
    rounds = [round(1e6 * taken, 2) for taken in seconds]
    best = min(rounds)
    about = {"variant": variant, "rows": rows}
    return {**about, "us_per_step": best, "us_per_row": round(best / rows, 3), "rounds": rounds}


def table(results: Sequence[Mapping[str, Any]]) -> Table:
    """The results as a table."""
    shown = Table(title=f"The host's time of a decode step, on {results[0]['machine']}", title_justify="left")
    shown.add_column("variant")
    for name in ("rows", "µs/step", "µs/step and row"):
        shown.add_column(name, justify="right")
    last = ""
    for line in results:
        name, last = "" if line["variant"] == last else line["variant"], line["variant"]
        shown.add_row(name, str(line["rows"]), f"{line['us_per_step']:,.1f}", f"{line['us_per_row']:.2f}")
    return shown


_ALL = (*VARIANTS, *READINGS)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=positive_ints, default="1,8,64,256", help="comma-separated (default: 1,8,64,256)"
    )
    parser.add_argument(
        "--variants", default=",".join(_ALL), help=f"comma-separated, of {', '.join(_ALL)} (default: all)"
    )
    parser.add_argument(
        "--best-of", type=positive_int, default=5, metavar="N", help=f"rounds of {WINDOW} steps (default: 5)"
    )
    add_output(parser)
    arguments = parser.parse_args(argv)
    arguments.variants = arguments.variants.split(",")
    if unknown := [name for name in arguments.variants if name not in _ALL]:
        parser.error(f"--variants {unknown[0]}: not one of {', '.join(_ALL)}")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    arguments = _arguments(argv)
    with (
        tempfile.TemporaryDirectory() as folder,
        result_lines(arguments.output, conditions()) as lines,
    ):
        write_placeholder_tokenizer(Path(folder), SMOLLM2_135M["vocab_size"])
        (Path(folder) / "config.json").write_text(json.dumps(SMOLLM2_135M))
        tokenizer = Tokenizer.from_folder(Path(folder))
        for name in arguments.variants:
            for rows in arguments.rows:
                if name in READINGS:
                    seconds = measure_reading(READINGS[name], tokenizer, rows, arguments.best_of)
                else:
                    seconds = measure(VARIANTS[name], tokenizer, rows, arguments.best_of)
                lines.write(result(name, rows, seconds))
    console().print(table(lines.written))


if __name__ == "__main__":
    main()
