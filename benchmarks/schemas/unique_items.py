"""Masks of arrays whose items have to differ: processor time of one mask along a document, by the number of items.

    python benchmarks/schemas/unique_items.py
    python benchmarks/schemas/unique_items.py --items 1000

The vocabulary is the embedded model's. The items are consecutive, so that each one resembles those before it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from draftline import LLM
from draftline.engine.bench.documents import record
from draftline.engine.bench.provenance import conditions
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.vocabulary import ByteVocabulary

_LETTERS = "abcdefghij"


def _pair(index: int) -> dict[str, object]:
    return {"a": index // 20 % 10, "b": _LETTERS[index // 2 % 10], "c": bool(index % 2)}


ITEMS: dict[str, tuple[dict[str, Any], Callable[[int], object], int]] = {
    "texts": ({"type": "string"}, lambda index: f"item {index}", 300),
    "texts of at most 12 characters": ({"type": "string", "maxLength": 12}, lambda index: f"item {index}", 100),
    "integers": ({"type": "integer"}, lambda index: index, 100),
    "integers up to 2,000": ({"type": "integer", "minimum": 0, "maximum": 2000}, lambda index: index, 100),
    "objects of a number, a letter and a boolean": (
        record(a={"enum": list(range(10))}, b={"enum": list(_LETTERS)}, c={"type": "boolean"}),
        _pair,
        60,
    ),
}
"""The schema of an item, the items, and how many."""


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, help="the number of items of each kind, at most 200 objects")
    options = parser.parse_args()
    print(conditions()["machine"])
    with LLM("smollm2", kv_cache_memory_gib=0.05, max_num_seqs=1) as llm:
        tokens = ByteVocabulary.of(llm.tokenizer, llm.info.config.vocab_size, frozenset(llm.info.eos_token_ids))
    compiler = ConstraintCompiler(tokens)
    words = np.empty(tokens.mask_words, np.int32)
    print("| Items | n | p50 | p99 | Longest |\n|---|---:|---:|---:|---:|")
    for name, (schema, item, usual) in ITEMS.items():
        array = json.dumps({"type": "array", "items": schema, "uniqueItems": True})
        matcher = compiler.compile(ConstraintSpec("json_schema", array, integers="plain")).begin().matcher
        count = options.items or usual
        times: list[float] = []
        for token in tokens.encode(json.dumps([item(index) for index in range(count)])):
            started = time.process_time()
            matcher.fill_mask(words)
            times.append(1000 * (time.process_time() - started))
            if not matcher.advance(token):
                raise RuntimeError("the document does not fit its schema")
        p50, p99, longest = np.percentile(times, [50, 99, 100])
        print(f"| {name} | {count} | {p50:.1f} ms | {p99:.0f} ms | {longest:.0f} ms |", flush=True)
    compiler.close()


if __name__ == "__main__":
    main()
