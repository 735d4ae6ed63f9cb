"""Answers under random types on a GPU, with the tables of their automata there: drafts change none, and the type reads all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import VOCAB, write_byte_tokenizer
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from random_types import LEAVES, whole_models

from draftline import LLM, Constraint, InvalidRequestError, SamplingParams, Schema
from draftline.engine.params import Speculation

pytestmark = pytest.mark.long

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 256,
}
ROUNDS = 4


def load(folder: Path, device: str) -> LLM:
    """A random model over bytes."""
    write_byte_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    return LLM(
        str(folder),
        load_format="dummy",
        device=device,
        kv_cache_memory_gib=0.25,
        max_num_seqs=32,
        drafter="ngram",
        draft_length="fixed",
        constraint_cache="none",
    )


def constraints(llm: LLM, kinds: list[Any]) -> tuple[list[tuple[Any, Constraint[Any]]], int]:
    """The constraints of the types that are not refused, compiled to the end, and how many have tables on the device."""
    made: list[tuple[Any, Constraint[Any]]] = []
    on_device = 0
    for kind in kinds:
        try:
            constraint = Schema(kind, whitespace="compact")
            on_device += llm.compile(constraint).runs_on == "device"
        except InvalidRequestError:
            continue
        made.append((kind, constraint))
    return made, on_device


def check(llm: LLM, kinds: list[Any]) -> tuple[int, int]:
    """Ask for answers with drafts and without. Returns how many were complete, and how many types had tables."""
    asked, on_device = constraints(llm, kinds)
    prompts = [[1, 2, 3 + number] for _ in asked for number in range(ROUNDS)]
    each = [constraint for _, constraint in asked for _ in range(ROUNDS)]
    # By itself a random model hardly ever ends a string.
    params = [
        SamplingParams(seed=number, max_tokens=150, logit_bias={ord(end): 3.0 + number for end in '"]}'})
        for _ in asked
        for number in range(ROUNDS)
    ]
    plain, drafted = (
        llm.generate(prompts, params, constraint=each, speculation=Speculation(enabled=drafts), use_tqdm=False)
        for drafts in (False, True)
    )
    complete = 0
    for index, (one, other) in enumerate(zip(plain, drafted, strict=True)):
        (answer,), (again,) = one.outputs, other.outputs
        assert answer.token_ids == again.token_ids
        assert answer.finished is not None
        if answer.finished.constraint_complete:
            adapter = TypeAdapter(asked[index // ROUNDS][0])
            adapter.validate_json(answer.text)
            adapter.validate_json(answer.text, strict=True)
            complete += 1
    return complete, on_device


@pytest.mark.timeout(600)
def test_random_types_are_read_with_drafts_and_without(tmp_path: Path) -> None:
    with load(tmp_path, "cuda") as llm:
        check_random_types(llm)


def check_random_types(llm: LLM) -> None:
    """Some kinds of leaves, and 40 models."""
    totals = [check(llm, LEAVES[::4])]

    @seed(16)
    @settings(
        deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), max_examples=4
    )
    @given(st.lists(whole_models, min_size=10, max_size=10))
    def ask(kinds: list[Any]) -> None:
        totals.append(check(llm, kinds))

    ask()
    complete, on_device = (sum(counts) for counts in zip(*totals, strict=True))
    assert complete > 60, (complete, on_device)
    assert on_device > 20, (complete, on_device)
    print(f"{complete} complete answers; {on_device} types with tables on the device")
