"""Compiling a large constraint: processor time until outputs can begin, until the tables are built, and from the folder.

    python benchmarks/compiling.py
    python benchmarks/compiling.py --schemas FOLDER

The constraint is an invoice with nested lines, dates, decimals and patterns, over the vocabulary of the embedded model.
Each measurement is the best of several, with a new compiler and new worker processes. Processor time is that of this process
and of its workers, so that other work on the machine hardly counts.

With ``--schemas`` the constraints are the schemas of a folder, as a server compiles them: one after another, until outputs
can begin, in workers that keep running. The folder is that of structured.py. Schemas that are refused count as well.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import resource
import tempfile
import time
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from common.provenance import Conditions
from pydantic import BaseModel, Field

from draftline import LLM, Schema
from draftline.engine.request.constraints import structured_constraint
from draftline.structured.compiled import CompileReport
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.vocabulary import ByteVocabulary


class Unit(enum.Enum):
    """What is counted."""

    HOUR = "hour"
    PIECE = "piece"
    KG = "kg"


class Line(BaseModel):
    """A line of an invoice."""

    description: str = Field(min_length=1, max_length=60)
    sku: str | None = Field(default=None, pattern="^[A-Z]{3}-[0-9]{4}$")
    quantity: int = Field(ge=1, le=1000)
    unit: Unit
    unit_price: Decimal = Field(max_digits=8, decimal_places=2, ge=0)


class Invoice(BaseModel):
    """An invoice with nested lines."""

    number: str = Field(pattern="^[A-Z]{2}-[0-9]{4}$")
    issued: date
    due: date | None
    currency: Literal["EUR", "USD"]
    lines: list[Line] = Field(min_length=1, max_length=4)
    total: Decimal = Field(max_digits=8, decimal_places=2, ge=0)


SPEC = structured_constraint(Schema(Invoice))


def vocabulary() -> ByteVocabulary:
    """The embedded model's."""
    with LLM("smollm2", kv_cache_memory_gib=0.05, max_num_seqs=1) as llm:
        eos_ids = frozenset(llm.info.eos_token_ids)
        return ByteVocabulary.of(llm.tokenizer, llm.info.config.vocab_size, eos_ids)


class Beginning(ConstraintCompiler):
    """Builds no tables behind the first outputs."""

    def _do_later(self, work: object) -> bool:
        return True


def processor_s() -> float:
    """Of this process, and of its workers that have ended."""
    times = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(time.ru_utime + time.ru_stime for time in times)


def running_s() -> float:
    """Processor time of this process and of its workers that are still running, by Linux's count."""
    own = os.times()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    fields = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children]
    ticks = sum(int(field[11]) + int(field[12]) for field in fields)
    return own.user + own.system + own.children_user + own.children_system + ticks / os.sysconf("SC_CLK_TCK")


def measure_schemas(folder: Path, every: int, tokens: ByteVocabulary) -> None:
    """Compile the schemas of a folder, or one of every few, and print the spread of processor time."""
    compiler = Beginning(tokens)
    warm = ConstraintSpec("json_schema", '{"type": "array", "items": {"type": "string"}}')
    compiler.compile(warm)
    taken: list[float] = []
    refused = 0
    for path in sorted(folder.glob("*.json"))[every - 1 :: every]:
        schema = json.dumps(json.loads(path.read_text())["schema"])
        before = running_s()
        try:
            compiler.compile(ConstraintSpec("json_schema", schema))
        except ValueError:
            refused += 1
        taken.append(running_s() - before)
    compiler.close()
    spread = np.percentile(np.array(taken) * 1000, [50, 95, 100])
    print(f"{len(taken)} schemas ({refused} refused): p50 / p95 / max {' / '.join(f'{one:.0f}' for one in spread)} ms")


def measure(compiler: ConstraintCompiler) -> tuple[float, float, CompileReport]:
    """Processor time and time by the clock of compiling, and what was compiled. It closes the compiler."""
    before, began = processor_s(), time.perf_counter()
    compiled = compiler.compile(SPEC)
    if not isinstance(compiler, Beginning):
        compiled = compiled.whole.result()
    clock = time.perf_counter() - began
    compiler.close()
    return processor_s() - before, clock, compiled.report


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each kind")
    parser.add_argument("--schemas", type=Path, help="a folder of schemas to compile instead")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="with --schemas: one schema of every N")
    arguments = parser.parse_args()
    repeats = arguments.repeats
    print(Conditions.now(torch.device("cpu")).machine)
    tokens = vocabulary()
    if arguments.schemas is not None:
        measure_schemas(arguments.schemas, arguments.every, tokens)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = {
            "until outputs can begin": [measure(Beginning(tokens)) for _ in range(repeats)],
            "until the tables are built": [measure(ConstraintCompiler(tokens)) for _ in range(repeats)],
        }
        compiler = ConstraintCompiler(tokens, cache_folder=folder)
        compiler.compile(SPEC).whole.result()
        while not list(folder.glob("*.tables")):
            time.sleep(0.1)
        compiler.close()
        later = [measure(ConstraintCompiler(tokens, cache_folder=folder)) for _ in range(repeats)]
        rows["from the folder, in a later process"] = later
    print("| | Processor | Clock | States | Runs on |\n|---|---:|---:|---:|---|")
    for title, found in rows.items():
        report = found[0][2]
        processor, clock = min(one[0] for one in found), min(one[1] for one in found)
        print(f"| {title} | {processor:.2f} s | {clock:.2f} s | {report.states} | {report.runs_on} |")


if __name__ == "__main__":
    main()
