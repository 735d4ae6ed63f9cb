"""Compiling a large constraint: processor time until outputs can begin, until the tables are built, and from the folder.

    python benchmarks/compiling.py

The constraint is an invoice with nested lines, dates, decimals and patterns, over the vocabulary of the embedded model.
Each measurement is the best of several, with a new compiler and new worker processes. Processor time is that of this process
and of its workers, so that other work on the machine hardly counts.
"""

from __future__ import annotations

import argparse
import enum
import resource
import tempfile
import time
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Literal

import torch
from common.provenance import Conditions
from pydantic import BaseModel, Field

from draftline import LLM, Schema
from draftline.engine.request.constraints import structured_constraint
from draftline.structured.compiled import CompileReport
from draftline.structured.compiler import ConstraintCompiler
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
    repeats = parser.parse_args().repeats
    print(Conditions.now(torch.device("cpu")).machine)
    tokens = vocabulary()
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
