"""A launched step's results: which tokens and log-probabilities are whose."""

from __future__ import annotations

import pytest
import torch

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.runner.launched_step import LaunchedStep, LogprobTensors
from draftline.engine.runner.transfer import Arrival, EventPool


def row(
    *,
    drafts: int = 0,
    samples: bool = True,
    prompt_len: int = 1,
    logprobs: int | None = None,
    prompt: int | None = None,
) -> Row:
    """A row that computes two tokens from position 0 on, and ends there if it samples."""
    known = 2 if samples else 5
    sampling = SamplingParams(logprobs=logprobs, prompt_logprobs=prompt)
    sequence = Sequence("r", 0, [0] * known, prompt_len, sampling, seed=0, max_len=99, order=0.0)
    return Row(sequence, 0, 0, 2, known, drafts, drafts + 1 if samples else 0)


def launched(
    rows: list[Row],
    tokens: list[int],
    accepted: list[int],
    logprobs: LogprobTensors | None = None,
    prompt_logprobs: LogprobTensors | None = None,
) -> LaunchedStep:
    return LaunchedStep(
        tuple(rows),
        torch.tensor(tokens, dtype=torch.int64),
        torch.tensor(accepted, dtype=torch.int32),
        len(tokens),
        logprobs,
        prompt_logprobs,
        Arrival(torch.device("cpu"), EventPool()),
    )


def log_probabilities(tokens: list[int], top: int) -> LogprobTensors:
    """Of these tokens: minus the token, rank 1, and the ``top`` ids after the token as the most likely ones."""
    ids = torch.tensor(tokens)
    top_ids = ids[:, None] + torch.arange(1, top + 1)
    return LogprobTensors(ids, -ids.float(), torch.ones_like(ids), top_ids, -top_ids.float())


@pytest.mark.parametrize(
    ("rows", "tokens", "accepted", "expected"),
    [
        pytest.param([row(), row()], [5, 6], [1, 1], [(5,), (6,)], id="decodes"),
        pytest.param([row(samples=False), row()], [5], [0, 1], [(), (5,)], id="a prompt's chunk"),
        pytest.param([row(drafts=2), row()], [5, 6, 7, 8], [2, 1], [(5, 6), (8,)], id="drafts"),
        # As many samples, rows and accepted tokens as in a step of two decodes.
        pytest.param([row(samples=False), row(drafts=1)], [5, 6], [0, 2], [(), (5, 6)], id="a chunk beside a draft"),
        pytest.param([row(samples=False), row(samples=False)], [], [0, 0], [(), ()], id="chunks only"),
    ],
)
def test_every_row_gets_its_tokens(
    rows: list[Row], tokens: list[int], accepted: list[int], expected: list[tuple[int, ...]]
) -> None:
    assert launched(rows, tokens, accepted).results().tokens == expected


def test_every_row_gets_as_many_logprobs_as_tokens_and_as_many_top_ones_as_it_wants() -> None:
    rows = [row(logprobs=2), row(), row(drafts=1, logprobs=0), row(logprobs=1)]
    step = launched(rows, [5, 6, 7, 8, 9], [1, 1, 1, 1], log_probabilities([5, 7, 8, 9], top=2))
    results = step.results().logprobs
    assert [[p.chosen.token_id for p in logprobs] for logprobs in results] == [[5], [], [7], [9]]
    assert [[t.token_id for p in logprobs for t in p.top] for logprobs in results] == [[6, 7], [], [], [10]]
    assert [t.rank for t in results[0][0].top] == [1, 2]
    assert results[0][0].chosen.logprob == -5


def test_prompt_logprobs_are_of_the_prompts_tokens_after_the_computed_ones() -> None:
    rows = [row(samples=False, prompt_len=5, prompt=1), row(), row(prompt_len=2, prompt=0)]
    step = launched(rows, [5, 6], [0, 1, 1], None, log_probabilities([30, 31, 40], top=1))
    prompts = step.results().prompt_logprobs
    assert [[p.chosen.token_id for p in prompt] for prompt in prompts] == [[30, 31], [], [40]]
    assert [[t.token_id for p in prompt for t in p.top] for prompt in prompts] == [[31, 32], [], []]
