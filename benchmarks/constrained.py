"""The cost of constraints during generation, and the steps that forced drafts save.

    python benchmarks/constrained.py --shape qwen3-0.6b --rows 64
    python benchmarks/constrained.py --rows 4 --output-len 64

Four sections, as JSON lines:

- mask: microseconds to write the mask of one row on the host, along a document, by an automaton, by llguidance, and by
  llguidance for 64 rows at once. Also microseconds of the look-ups of a verify step of 64 rows with 5 positions, on a
  CPU.
- rate: tokens/s of batches without constraints, with an automaton for every row or every other row, with a structural
  tag for every row, inside a tag with a closed schema and in the free text before one, and with a grammar for every
  row. Rounds alternate; the result is the median, also relative to the unconstrained batch.
- tools: seconds of processor time, the workers' included, until an output of a structural tag of many tools, each with
  two or six members, can begin, and of another one with the same tools; the best of three.
- steps: steps to extract a record from a text, without drafts, and with forced drafts only. It needs a model that ends
  its documents, so it excludes --shape.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from common.arguments import fill, positive_int, refuse
from common.compile_time import BeginningCompiler, processor_s

from draftline.engine.bench.contenders.engines import BenchmarkModel
from draftline.engine.bench.contenders.shapes import SHAPES
from draftline.engine.bench.documents import PERSON, documents
from draftline.engine.bench.provenance import conditions
from draftline.engine.build import build_core
from draftline.engine.chat.messages import Chat
from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.outputs import Finished, Update
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.constraints import structured_constraint
from draftline.engine.request.request import RequestBuilder
from draftline.engine.schema import Schema
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.structured.automaton.arena import AutomatonArena
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.masks import MaskedRow, fill_masks
from draftline.structured.vocabulary import ByteVocabulary

DOCUMENT = json.dumps(
    {
        "first_name": "Ada",
        "last_name": "Lovelace",
        "age": 36,
        "email": "ada@example.org",
        "languages": ["English", "French"],
    }
)
OPEN_PERSON = PERSON | {"additionalProperties": True}
CLOSED = Schema(PERSON, whitespace="spaced")
OPEN = Schema(OPEN_PERSON, whitespace="spaced")
OPEN_PERSONS = Schema({"type": "array", "items": OPEN_PERSON, "minItems": 1000}, whitespace="spaced")
"""A grammar whose documents are longer than any output."""


def long_text(characters: int) -> tuple[Constraint, Constraint]:
    """JSON with a text that is longer than any output: as an automaton, and as a grammar that counts characters."""
    text = f"[ -!#-\\[\\]-~]{{{characters},}}"
    regex = f'\\{{"text": "{text}"\\}}'
    return Constraint(regex=regex), Constraint(grammar=f"start: /{regex}/")


def tag(characters: int, *, at_once: bool) -> Constraint:
    """A structural tag whose content, by a closed schema, is longer than any output.

    Args:
        characters: of the content.
        at_once: whether the tag begins the output. Otherwise free text comes first, and hardly ever ends.
    """
    text = {"type": "string", "pattern": f"^[ -!#-\\[\\]-~]{{{characters},}}$"}
    schema = {"type": "object", "properties": {"text": text}, "required": ["text"], "additionalProperties": False}
    one = {
        "begin": '<tool_call>\n{"name": "write", "arguments": ',
        "content": {"type": "json_schema", "json_schema": schema},
        "end": "}\n</tool_call>",
    }
    form = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [one], "at_least_one": at_once}
    return Constraint(structural_tag=json.dumps({"type": "structural_tag", "format": form}))


def mask_times(compiler: ConstraintCompiler) -> Iterator[dict[str, object]]:
    """Times of one row's masks, along a document."""
    for constraint in (CLOSED, OPEN):
        compiled = compiler.compile(structured_constraint(constraint))
        matcher = compiled.begin().matcher
        tokens = compiler.vocabulary.encode(DOCUMENT)
        words = np.empty(compiler.vocabulary.mask_words, np.int32)
        times = []
        for _ in range(200):
            for token in tokens:
                started = time.perf_counter_ns()
                matcher.fill_mask(words)
                times.append((time.perf_counter_ns() - started) / 1000)
                if not matcher.advance(token):
                    raise RuntimeError("the document does not fit its schema")
            matcher.rollback(len(tokens))
        yield {"section": "mask", "what": f"one row, {compiled.report.backend}", "masks": len(times)} | _spread(times)


def batch_mask_times(compiler: ConstraintCompiler, rows: int = 64) -> dict[str, object]:
    """Times a row of the masks of many rows with a grammar, written at once, along a document."""
    compiled = compiler.compile(structured_constraint(OPEN))
    tokens = compiler.vocabulary.encode(DOCUMENT)
    words = np.empty((rows, compiler.vocabulary.mask_words), np.int32)
    times = []
    for _ in range(20):
        matchers = [compiled.begin().matcher for _ in range(rows)]
        batch = [MaskedRow(matcher) for matcher in matchers]
        for token in tokens:
            started = time.perf_counter_ns()
            fill_masks(batch, words)
            times.append((time.perf_counter_ns() - started) / 1000 / rows)
            for matcher in matchers:
                matcher.advance(token)
    return {"section": "mask", "what": f"one of {rows} rows, grammar", "masks": len(times) * rows} | _spread(times)


def verify_times(compiler: ConstraintCompiler, rows: int = 64, drafts: int = 4) -> dict[str, object]:
    """Times of a whole verify step on the CPU, with rows at random positions of a document."""
    tables = compiler.compile(structured_constraint(CLOSED)).begin().tables
    assert tables is not None
    cpu, positions = torch.device("cpu"), drafts + 1
    table = ConstraintTable.allocate(
        rows, len(compiler.vocabulary.tokens), words=1 << 21, masks=500, samples=positions, device=cpu
    )
    slots = SlotTable.allocate(rows, 64, 1, cpu)
    place = AutomatonArena(table).acquire(tables.automaton, tables.drafts)
    assert place is not None
    tokens = compiler.vocabulary.encode(DOCUMENT)
    draw = np.random.default_rng(0)
    for slot in range(rows):
        matcher = compiler.compile(structured_constraint(CLOSED)).begin()
        done = int(draw.integers(0, len(tokens) - drafts))
        for token in tokens[:done]:
            matcher.matcher.advance(token)
        table.states[slot], table.classes[slot] = place.address(matcher.state), place.classes
        slots.tokens[slot, :drafts] = torch.tensor(tokens[done : done + drafts], dtype=torch.int32)
    which = SampleRows(
        torch.arange(rows).repeat_interleave(positions),
        torch.arange(positions).repeat(rows),
        SamplingFeatures.MASK,
        None,
    )
    starts = torch.arange(0, rows * positions + 1, positions, dtype=torch.int32)
    ops, times = ReferenceOps(), []
    for _ in range(1000):
        started = time.perf_counter_ns()
        ops.constrain(which, starts, slots, table)
        times.append((time.perf_counter_ns() - started) / 1000)
    return {"section": "mask", "what": f"{rows} rows x {positions} positions, automaton", **_spread(times)}


MORE_MEMBERS: dict[str, object] = {
    "unit": {"enum": ["celsius", "fahrenheit"]},
    "hourly": {"type": "boolean", "description": "Hour by hour."},
    "fields": {"type": "array", "items": {"type": "string"}},
    "latitude": {"type": "number"},
}
"""Optional members of a tool's arguments."""


def tool_times(vocabulary: ByteVocabulary) -> Iterator[dict[str, object]]:
    """Times to compile structural tags of many tools, until an output can begin, as a server does it."""
    for count, members in ((20, 2), (100, 2), (500, 2), (500, 6)):
        tags = []
        for index in range(count):
            first = {f"city_{index}": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14}}
            properties = first | dict(islice(MORE_MEMBERS.items(), members - len(first)))
            schema = {"type": "object", "properties": properties, "required": [f"city_{index}"]}
            content = {"type": "json_schema", "json_schema": {**schema, "additionalProperties": False}}
            begin = f'<tool_call>\n{{"name": "tool_{index}", "arguments": '
            tags.append({"type": "tag", "begin": begin, "content": content, "end": "}\n</tool_call>"})
        form = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": tags}
        source = json.dumps({"type": "structural_tag", "format": form})
        # Another text, with the same tools: what a caller sends who adds one.
        again = json.dumps({"type": "structural_tag", "format": {**form, "excludes": ["<again>"]}})
        times: list[tuple[float, float]] = []
        for _ in range(3):
            compiler = BeginningCompiler(vocabulary)
            compiler.warm_up()
            compiler.compile(ConstraintSpec("grammar", 'start: "a"'))
            taken = []
            for one in (source, again):
                started = processor_s()
                report = compiler.compile(ConstraintSpec("structural_tag", one)).report
                taken.append(processor_s() - started)
            compiler.close()
            times.append((taken[0], taken[1]))
        yield {
            "section": "tools",
            "what": f"{count} tools of {members} members",
            "backend": report.backend,
            "cpu_s": round(min(first for first, _ in times), 3),
            "cpu_s_with_known_tools": round(min(second for _, second in times), 3),
        }


def _spread(times: Sequence[float]) -> dict[str, float]:
    p50, p99, maximum = np.percentile(times, [50, 99, 100])
    return {"p50_us": round(p50, 2), "p99_us": round(p99, 2), "max_us": round(maximum, 2)}


class BatchRunner:
    """An engine that runs batches."""

    def __init__(self, config: EngineConfig) -> None:
        self.core: Core = build_core(config)
        self._builder = RequestBuilder(self.core.info, self.core.tokenizer, config.ageing_s, self.core.compiler)

    @property
    def compiler(self) -> ConstraintCompiler:
        """The compiler of the engine."""
        return self.core.compiler

    def run(self, requests: Sequence[GenerateRequest]) -> tuple[float, list[Finished]]:
        """Run a batch; return its seconds, and the end of each request."""
        ends: list[Finished] = []

        def sink(updates: Sequence[tuple[str, Update]]) -> None:
            for _, update in updates:
                if isinstance(update, Finished):
                    ends.append(update)
                elif update.ends_output:
                    raise RuntimeError("a request failed")

        for index, request in enumerate(requests):
            self.core.add(self._builder.build(str(index), request, sink, self.core.now()))
        started = time.perf_counter()
        while self.core.has_work:
            self.core.step()
        return time.perf_counter() - started, ends


def rates(runner: BatchRunner, rows: int, prompt_len: int, output_len: int, rounds: int) -> Iterator[dict[str, object]]:
    """Tokens/s with several kinds of constraints, and without."""
    # Longer than any output, but no longer: an automaton that counts characters has a state for each.
    characters = output_len * max(map(len, runner.compiler.vocabulary.tokens))
    automaton, counting = long_text(characters)
    kinds: dict[str, list[Constraint | None]] = {
        "none": [None] * rows,
        "every row, automaton": [automaton] * rows,
        "every other row, automaton": [automaton if row % 2 else None for row in range(rows)],
        "every row, in a tag": [tag(characters, at_once=True)] * rows,
        "every row, before a tag": [tag(characters, at_once=False)] * rows,
        "every row, grammar": [OPEN_PERSONS] * rows,
        "every row, counting grammar": [counting] * rows,
    }
    for kind in ("every row, in a tag", "every row, before a tag"):
        tagged = kinds[kind][0]
        assert tagged is not None
        report = runner.compiler.compile(structured_constraint(tagged)).report
        if report.backend != "automaton":
            raise RuntimeError(f"a grammar enforces the structural tag: {report.no_automaton}")
    draw, vocab = np.random.default_rng(0), runner.core.info.config.vocab_size
    prompts = [draw.integers(3, vocab, prompt_len).tolist() for _ in range(rows)]
    sampling = SamplingParams(max_tokens=output_len, ignore_eos=True, temperature=1.0)
    undrafted = Speculation(enabled=False)
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for round_ in range(rounds + 1):
        for kind, constraints in kinds.items():
            requests = [
                GenerateRequest(prompt, sampling.model_copy(update={"seed": index}), constraint, undrafted)
                for index, (prompt, constraint) in enumerate(zip(prompts, constraints, strict=True))
            ]
            took, _ = runner.run(requests)
            if round_:  # the first one warms up
                seconds[kind].append(took)
    free = statistics.median(seconds["none"])
    for kind, times in seconds.items():
        took = statistics.median(times)
        yield {
            "section": "rate",
            "what": kind,
            "rows": rows,
            "tokens_per_s": round(rows * output_len / took, 1),
            "of_unconstrained": round(free / took, 4),
        }


def steps(runner: BatchRunner) -> Iterator[dict[str, object]]:
    """Steps to extract records, counted for each document by itself: the batch does not change their number."""
    sampling = SamplingParams(max_tokens=256, temperature=0)
    for kind, extra in (("closed schemas", {}), ("open schemas", {"additionalProperties": True})):
        ends: dict[bool, list[Finished]] = {}
        for drafted in (False, True):
            requests = [
                GenerateRequest(
                    Chat((("user", prompt),)),
                    sampling,
                    Schema({**schema, **extra}, whitespace="spaced"),
                    Speculation(enabled=drafted),
                )
                for prompt, schema in documents()
            ]
            _, ends[drafted] = runner.run(requests)
        without, with_drafts = (sum(end.speculation.steps for end in ends[drafted]) for drafted in (False, True))
        yield {
            "section": "steps",
            "what": kind,
            "documents": len(ends[True]),
            "complete": sum(end.constraint_complete is True for end in ends[True]),
            "tokens": sum(end.usage.completion_tokens for end in ends[True]),
            "without_drafts": without,
            "with_drafts": with_drafts,
            "fewer_by": round(without / with_drafts, 3),
            "drafted": sum(end.speculation.drafted for end in ends[True]),
            "accepted": sum(end.speculation.accepted for end in ends[True]),
        }


SECTIONS = ("mask", "rate", "tools", "steps")

_OF_RATE = {"rows": 64, "prompt_len": 128, "output_len": 256, "rounds": 3}
"""The arguments of the section ``rate``, with their defaults."""


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] = print) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--shape", help=f"random weights in the shape of {', '.join(SHAPES)}, or of a config.json, instead of --model"
    )
    source.add_argument("--model", default="smollm2", help="a checkpoint (default: smollm2)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=positive_int, help="requests in a batch of the section rate (default: 64)")
    parser.add_argument("--prompt-len", type=positive_int, help="tokens of each of its prompts (default: 128)")
    parser.add_argument("--output-len", type=positive_int, help="tokens of each of its outputs (default: 256)")
    parser.add_argument("--rounds", type=positive_int, help="its timed rounds (default: 3)")
    parser.add_argument(
        "--sections", help=f"comma-separated, of {', '.join(SECTIONS)} (default: all that --shape allows)"
    )
    arguments = parser.parse_args(argv)
    allowed = SECTIONS[:-1] if arguments.shape else SECTIONS
    sections = allowed if arguments.sections is None else arguments.sections.split(",")
    if unknown := [name for name in sections if name not in SECTIONS]:
        parser.error(f"--sections {unknown[0]}: not one of {', '.join(SECTIONS)}")
    if "rate" not in sections:
        refuse(parser, arguments, _OF_RATE, "belongs to the section rate")
    fill(arguments, _OF_RATE)
    if arguments.shape and "steps" in sections:
        parser.error("--sections steps: random weights do not end their documents; use --model")
    with tempfile.TemporaryDirectory() as folder:
        model = BenchmarkModel.chosen(arguments.model, arguments.shape, Path(folder))
        config = EngineConfig.model_validate(
            {
                "model": model.checkpoint,
                "load_format": model.load_format,
                "device": arguments.device,
                "max_model_len": max(arguments.prompt_len + arguments.output_len, 512),
                "max_num_seqs": max(arguments.rows, 16),
                "prefix_caching": False,
                **({"drafter": "forced", "draft_tokens": 8} if "steps" in sections else {"drafter": "none"}),
            }
        )
        runner = BatchRunner(config)
        about = {
            "model": model.name,
            **conditions(runner.core.info.device),
        }
        compiler, size = runner.compiler, (arguments.rows, arguments.prompt_len, arguments.output_len)
        measured: Mapping[str, Callable[[], Iterable[dict[str, object]]]] = {
            "mask": lambda: (*mask_times(compiler), batch_mask_times(compiler), verify_times(compiler)),
            "rate": lambda: rates(runner, *size, arguments.rounds),
            "tools": lambda: tool_times(compiler.vocabulary),
            "steps": lambda: steps(runner),
        }
        for name in SECTIONS:
            for line in measured[name]() if name in sections else ():
                write(json.dumps(line | about))
        runner.core.close()


if __name__ == "__main__":
    main()
