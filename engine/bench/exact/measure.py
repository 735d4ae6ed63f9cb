"""One configuration of an engine: each column asks the same questions in another way."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from draftline.engine.bench.exact.answers import EngineAnswers, answer_in_fresh_process
from draftline.engine.bench.exact.columns import ALONE, Column, columns, scarce
from draftline.engine.bench.exact.results import result
from draftline.engine.config import EngineConfig, without_drafts
from draftline.engine.protocol import GenerateRequest
from draftline.engine.runner.device import select_device


def measure(
    given: Mapping[str, Any],
    suites: Mapping[str, Sequence[GenerateRequest]],
    max_tokens: int,
    only: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """One configuration: the fields of each column's result in each suite, the reference first.

    Args:
        given: options of all engines, besides those of this benchmark. Those of a draft model are for its column.
        suites: the requests by suite.
        max_tokens: the most tokens of an answer.
        only: the names of the columns besides the reference; empty for all.

    Raises:
        ValueError: there is no column of a name in ``only``. No engine has run then.
    """

    def answers_of(column: Column, chosen: Mapping[str, Sequence[GenerateRequest]]) -> EngineAnswers:
        config = EngineConfig.model_validate(common | dict(column.options))
        # A process divides a model between devices once.
        ask = column.ask if config.tensor_parallel_size == 1 else answer_in_fresh_process
        answers = ask(config, list(chosen.values()), column.concurrencies, column.count)
        # The engine's memory, before the next one takes its own, perhaps in another process.
        gc.collect()
        torch.cuda.empty_cache()
        return answers

    asked = EngineConfig.model_validate(dict(given))
    on_gpu = select_device(asked).type == "cuda"
    cache = {"kv_cache_memory_gib": 8.0 if on_gpu else 1.0}
    common: dict[str, Any] = {"max_num_seqs": 64} | cache | without_drafts(given)
    draft = {name: value for name, value in given.items() if name not in common}
    found = columns(only, max_batched_tokens=asked.max_batched_tokens, on_gpu=on_gpu, draft=draft)
    alone = answers_of(ALONE, suites)
    reference = dict(zip(suites, alone.suites, strict=True))
    for name, answers in reference.items():
        yield result(ALONE, alone.info, name, answers, answers)
    for column in found:
        chosen = {name: suites[name] for name in suites if column.suites is None or name in column.suites}
        if chosen:
            if column.scarce_cache:
                options = scarce(alone, float(common["kv_cache_memory_gib"]), max_tokens)
                column = replace(column, options=options)
            got = answers_of(column, chosen)
            for name, answers in zip(chosen, got.suites, strict=True):
                yield result(column, got.info, name, answers, reference[name])
