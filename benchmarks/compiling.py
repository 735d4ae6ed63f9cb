"""Compiling a large constraint: processor time until the first token's mask, until the tables are built, and from the folder.

    python benchmarks/compiling.py
    python benchmarks/compiling.py --schemas FOLDER

The constraint is an invoice with nested lines, dates, decimals and patterns, over the vocabulary of the embedded model;
then the same behind reasoning, and as the arguments of a call. Each measurement is the best of several, with a new compiler.
Its worker has started, as it does while an engine loads; ``--cold`` starts it with the constraint. Processor time is that of
this process and of its workers, so that other work on the machine hardly counts.

With ``--schemas`` the constraints are the schemas of a folder, as a server compiles them: one after another, until outputs
can begin, in workers that keep running. The folder is that of structured.py. Schemas that are refused count as well.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from common.arguments import fill, positive_int, refuse
from common.compile_time import BeginningCompiler, processor_s
from common.invoice import Invoice

from draftline import LLM, Constraint, Reasoning, Schema
from draftline.engine.bench.provenance import conditions
from draftline.engine.request.constraints import structured_constraint
from draftline.structured.compiled import CompileReport
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.vocabulary import ByteVocabulary


def constraints() -> dict[str, ConstraintSpec]:
    """The constraints by the names of their rows."""
    invoice = Schema(Invoice)
    assert invoice.json_schema is not None
    content = {"type": "json_schema", "json_schema": json.loads(invoice.json_schema)}
    tag = {"type": "tag", "begin": "<invoice>", "content": content, "end": "</invoice>"}
    text = {"type": "triggered_tags", "triggers": ["<invoice>"], "tags": [tag]}
    call = Constraint(structural_tag=json.dumps({"type": "structural_tag", "format": text}))
    behind = invoice.model_copy(update={"reasoning": Reasoning(begin="<think>", end="</think>")})
    asked = {"an invoice": invoice, "behind reasoning": behind, "in a structural tag": call}
    return {name: structured_constraint(one) for name, one in asked.items()}


def vocabulary() -> ByteVocabulary:
    """The embedded model's."""
    with LLM("smollm2", kv_cache_memory_gib=0.05, max_num_seqs=1) as llm:
        eos_ids = frozenset(llm.info.eos_token_ids)
        return ByteVocabulary.of(llm.tokenizer, llm.info.config.vocab_size, eos_ids)


def measure_schemas(folder: Path, every: int, tokens: ByteVocabulary) -> None:
    """Compile the schemas of a folder, or one of every few, and print the spread of processor time."""
    compiler = BeginningCompiler(tokens)
    warm = ConstraintSpec("json_schema", '{"type": "array", "items": {"type": "string"}}')
    compiler.compile(warm)
    taken: list[float] = []
    refused = 0
    for path in sorted(folder.glob("*.json"))[every - 1 :: every]:
        schema = json.dumps(json.loads(path.read_text())["schema"])
        before = processor_s()
        try:
            compiler.compile(ConstraintSpec("json_schema", schema))
        except ValueError:
            refused += 1
        taken.append(processor_s() - before)
    compiler.close()
    spread = np.percentile(np.array(taken) * 1000, [50, 95, 100])
    print(f"{len(taken)} schemas ({refused} refused): p50 / p95 / max {' / '.join(f'{one:.0f}' for one in spread)} ms")


def measure(compiler: ConstraintCompiler, spec: ConstraintSpec, *, whole: bool) -> tuple[float, float, CompileReport]:
    """Processor time and time by the clock until the first mask, and what was compiled. It closes the compiler.

    Args:
        compiler: a new one.
        spec: the constraint.
        whole: wait for all tables first.
    """
    words = np.empty(compiler.vocabulary.mask_words, np.int32)
    before, began = processor_s(), time.perf_counter()
    compiled = compiler.compile(spec)
    if whole:
        compiled = compiled.whole.result()
    compiled.begin().matcher.fill_mask(words)
    clock, processor = time.perf_counter() - began, processor_s() - before
    compiler.close()
    return processor, clock, compiled.report


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=positive_int, help="measurements of each kind (default: 5)")
    parser.add_argument("--cold", action="store_true", help="start the worker with the constraint")
    parser.add_argument("--schemas", type=Path, help="a folder of schemas to compile instead")
    parser.add_argument("--every", type=positive_int, metavar="N", help="one of every N --schemas (default: 1)")
    options = parser.parse_args(argv)
    if options.schemas is None:
        refuse(parser, options, ["every"], "needs --schemas")
    else:
        refuse(parser, options, ["repeats", "cold"], "not with --schemas, which are compiled once")
    fill(options, {"repeats": 5, "every": 1})
    print(conditions()["machine"])
    tokens = vocabulary()
    if options.schemas is not None:
        measure_schemas(options.schemas, options.every, tokens)
        return

    def started(make: Callable[..., ConstraintCompiler], folder: Path | None = None) -> ConstraintCompiler:
        compiler = make(tokens, cache_folder=folder)
        if not options.cold:
            compiler.warm_up()
        return compiler

    print("| | | Processor | Clock | States | Runs on |\n|---|---|---:|---:|---:|---|")
    for name, spec in constraints().items():
        with tempfile.TemporaryDirectory() as kept:
            folder = Path(kept)
            rows = {
                "until the first mask": [
                    measure(started(BeginningCompiler), spec, whole=False) for _ in range(options.repeats)
                ],
                "until the tables are built": [
                    measure(started(ConstraintCompiler), spec, whole=True) for _ in range(options.repeats)
                ],
            }
            compiler = ConstraintCompiler(tokens, cache_folder=folder)
            compiler.compile(spec).whole.result()
            while not list(folder.glob("*.tables")):
                time.sleep(0.1)
            compiler.close()
            rows["from the folder, in a later process"] = [
                measure(started(ConstraintCompiler, folder), spec, whole=True) for _ in range(options.repeats)
            ]
        for title, found in rows.items():
            report = found[0][2]
            processor, clock = min(one[0] for one in found), min(one[1] for one in found)
            print(f"| {name} | {title} | {processor:.2f} s | {clock:.2f} s | {report.states} | {report.runs_on} |")


if __name__ == "__main__":
    main()
