"""Workloads, arrivals, lengths, datasets, and the run that sends them, against a target whose times are known."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typing_extensions import override

from draftline.engine.bench.lines import ResultLines
from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.load.arrivals import BURST, arrival_times
from draftline.engine.bench.load.axes import at
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.load.datasets import DatasetError, read_dataset
from draftline.engine.bench.load.history import HISTORIES, WORDS, Form, words
from draftline.engine.bench.load.lengths import Lengths
from draftline.engine.bench.load.run import LoadInterrupted, Sampling, run_load, warm_up
from draftline.engine.bench.load.workloads import WORKLOADS, Conversation, Turn, Workload, find_workload
from draftline.engine.bench.measure import LoadBench
from draftline.engine.bench.questions import read_questions
from draftline.engine.bench.report.page import render
from draftline.engine.bench.summary import Limits, hit_rate, percentiles, summarize
from draftline.engine.bench.targets.target import Question, RequestError, Target, TargetInfo
from draftline.engine.chat.messages import Chat
from draftline.engine.cli.bench.load import notes
from draftline.engine.validation import violations

ALL = [workload for sizes in WORKLOADS.values() for workload in sizes.values()]
GREEDY = Sampling(ignore_eos=True, temperature=0.0, seed=0)
LIMITS = Limits(ttft_s=1.0, tpot_s=0.05, e2e_s=None)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("128", 128, 128), ("64-512", 64, 512), ("normal:100,10", 60, 140), ("lognormal:100,0.5", 14, 739)],
)
def test_lengths_are_read_as_they_are_written(text: str, low: int, high: int) -> None:
    lengths = Lengths.parse(text)
    assert (lengths.low, lengths.high, str(lengths)) == (low, high, text)
    rng = random.Random(0)
    drawn = [lengths.draw(rng) for _ in range(500)]
    assert low <= min(drawn) <= max(drawn) <= high
    assert len(set(drawn)) > 1 or low == high


@pytest.mark.parametrize(
    "text",
    ["", "0", "9-3", "-5", "normal:0,1", "lognormal:10,9", "normal:10", "many", "9" * 20, f"normal:{'9' * 400},1"],
)
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"length|is not|SIGMA"):
        Lengths.parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workload": "foo"}, r"'foo' is not one of [\w, -]+$"),
        (
            {"prompt_len": "5-2"},
            r"'5-2': lengths begin at 1 and end at 16777216, and the first is not above the second$",
        ),
    ],
)
def test_an_error_shows_a_wrong_value_once(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LoadConfig.model_validate(options)
    [violation] = violations(caught.value)
    assert re.match(message, violation.description)


@pytest.mark.parametrize("pattern", ["poisson", "uniform", "burst"])
def test_open_arrivals_keep_the_mean_rate(pattern: str) -> None:
    times = arrival_times(pattern, 10.0, 4000, random.Random(0))  # type: ignore[arg-type]
    assert times == sorted(times)
    assert times[0] == 0
    assert times[-1] == pytest.approx(400, rel=0.1)


def test_bursts_arrive_together_and_a_closed_loop_at_once() -> None:
    times = arrival_times("burst", 10.0, 3 * BURST, random.Random(0))
    assert len(set(times)) == 3
    assert set(arrival_times("closed", 1.0, 5, random.Random(0))) == {0.0}


@pytest.mark.parametrize("workload", ALL, ids=lambda workload: f"{workload.name}-{workload.conversations}")
def test_a_workload_matches_its_fields_and_is_deterministic(workload: Workload) -> None:
    conversations = workload.draw(1000, 3)
    assert conversations == workload.draw(1000, 3)
    assert conversations != workload.draw(1000, 4)
    assert len(conversations) == workload.conversations
    assert len({conversation.shared for conversation in conversations}) == 1
    for conversation in conversations:
        assert len(conversation.shared) == workload.shared_prefix
        assert len(conversation.turns) == workload.turns
        assert conversation.tokens == len(conversation.shared) + sum(
            len(turn.new) + turn.output_len for turn in conversation.turns
        )
        assert conversation.tokens <= workload.max_model_len


def test_names_have_hyphens_or_underscores() -> None:
    assert find_workload("agent_session", "small") is find_workload("agent-session", "small")
    with pytest.raises(ValueError, match="chat-serving"):
        find_workload("nothing", "small")


def test_options_replace_a_workloads_own() -> None:
    config = LoadConfig(
        workload="chunked-prefill", conversations=3, turns=2, prompt_len="7", output_len="4-5", rate=9.0, think=0.25
    )
    workload = config.resolved()
    assert (workload.conversations, workload.rate, workload.think_s, workload.long) == (3, 9.0, 0.25, None)
    assert (str(workload.prompt), str(workload.output)) == ("7", "4-5")


@pytest.mark.parametrize(
    ("options", "arrivals", "max_concurrent"),
    [
        ({}, "closed", 1),
        ({"rate": 3.0}, "poisson", None),
        ({"arrivals": "uniform"}, "uniform", None),
        ({"rate": 3.0, "max_concurrent": 5}, "poisson", 5),
        ({"workload": "chat-serving", "max_concurrent": 5}, "poisson", 5),
    ],
)
def test_what_arrives_has_no_limit_but_the_users(
    options: dict[str, Any], arrivals: str, max_concurrent: int | None
) -> None:
    workload = LoadConfig(**options).resolved()
    assert (workload.arrivals, workload.max_concurrent) == (arrivals, max_concurrent)


def test_a_value_of_each_axis_is_a_load() -> None:
    base = LoadConfig(workload="chunked-prefill", conversations=9)
    closed = at(base, {"clients": "4", "output_lens": "7"}).resolved()
    assert (closed.arrivals, closed.max_concurrent, closed.conversations) == ("closed", 4, 16)
    assert str(closed.output) == "7"
    opened = at(LoadConfig(), {"rates": " 2.5", "prompt_lens": "5-6"}).resolved()
    assert (opened.arrivals, opened.rate, opened.max_concurrent) == ("poisson", 2.5, None)
    assert (str(opened.prompt), opened.long) == ("5-6", None)


@pytest.mark.parametrize(
    ("options", "values", "problem"),
    [
        ({"max_concurrent": 3}, {"clients": "1"}, "--clients and --max-concurrent: set one of them"),
        ({"rate": 3.0}, {"clients": "1"}, "--clients and --rate: set one of them"),
        ({"arrivals": "poisson"}, {"clients": "1"}, "--clients and --arrivals: set one of them"),
        ({"rate": 3.0}, {"rates": "1"}, "--rates and --rate: set one of them"),
        ({"arrivals": "closed"}, {"rates": "1"}, "--rates: a closed loop has none"),
        ({"prompt_len": "4"}, {"prompt_lens": "1"}, "--prompt-lens and --prompt-len: set one of them"),
        ({"output_len": "4"}, {"output_lens": "1"}, "--output-lens and --output-len: set one of them"),
        ({}, {"clients": "x"}, "--clients: 'x' is no whole number"),
        ({}, {"rates": "1e400"}, "--rates: '1e400' is no rate"),
        ({}, {"rates": "nan"}, "--rates: 'nan' is no rate"),
    ],
)
def test_an_axis_and_its_option_are_one_too_many(options: dict[str, Any], values: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        at(LoadConfig(**options), values)


def test_the_agents_prompts_are_mostly_known_from_before() -> None:
    """At least 80% of the prompts' tokens are known: the target of the cache hit rate can be reached."""
    for size in ("small", "medium", "large"):
        workload = find_workload("agent-session", size)  # type: ignore[arg-type]
        known = total = 0
        for index, conversation in enumerate(workload.draw(50_000, 0)):
            length = len(conversation.shared)
            for number, turn in enumerate(conversation.turns):
                before = length
                length += len(turn.new)
                known += before if index or number else 0
                total += length
                length += turn.output_len
        assert known / total > 0.82


@pytest.mark.parametrize(
    "options",
    [
        {"workload": "nothing"},
        {"prompt_len": "x"},
        {"dataset": Path("d"), "prompt_len": "5"},
        {"dataset": Path("d"), "prompts": "tokens"},
        {"dataset": Path("d"), "output_len": "5-9"},
        {"arrivals": "closed", "rate": 2.0},
        {"tool_len": "5"},
        {"workload": "chat-serving", "turns": 1, "think": 1.0},
        {"dataset": Path("d"), "turns": 1, "think": 1.0},
        {"rate": 0.0},
        {"ttft_limit": float("inf")},
        {"tpot_limit": float("nan")},
    ],
    ids=str,
)
def test_contradictions_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LoadConfig.model_validate(options)


def test_datasets_of_both_forms(tmp_path: Path) -> None:
    share = tmp_path / "share.json"
    entry = {
        "conversations": [
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "x" * 40},
            {"from": "human", "value": "?"},
        ]
    }
    share.write_text(json.dumps([entry, {"messages": [{"role": "user", "content": "Ho"}]}]))
    first, second = read_dataset(share, None, None, None, 0)
    assert first == (Turn((), 10, "Hi"), Turn((), 256, "?"))
    assert second == (Turn((), 256, "Ho"),)
    assert read_dataset(share, None, 1, 7, 0)[0] == (Turn((), 7, "Hi"),)
    bench = tmp_path / "bench.jsonl"
    bench.write_text('{"category": "qa", "turns": ["a", "b"]}\n\n{"category": "qa", "turns": ["c"]}\n')
    assert [len(turns) for turns in read_dataset(bench, None, None, None, 0)] == [2, 1]
    assert len(read_dataset(bench, 1, None, None, 0)) == 1


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_of_prompts_may_come_from_any_editor(tmp_path: Path, mark: str, ending: str) -> None:
    texts = ["one\u2028line", "\x85 two", "three"]
    entries = [{"prompt": texts[0]}, texts[1], {"turns": [texts[2], "later"]}]
    lines = tmp_path / "prompts.jsonl"
    lines.write_text(mark + ending.join(json.dumps(entry, ensure_ascii=False) for entry in entries), newline="")
    plain = tmp_path / "prompts.txt"
    plain.write_text(mark + ending.join(texts) + ending, newline="")
    assert [turns[0].text for turns in read_dataset(lines, None, 1, None, 0)] == texts
    assert read_questions(lines, None) == read_questions(plain, None) == texts


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "no conversation"),
        ("[1]", r"\[0\]: must be a text or an object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"turns": [1]}', ":1: .*'turns' a list of texts"),
        ('{"prompt": [1, 2]}', ":1: 'prompt' must be a text"),
        ('"a"\n"\\ud800"', ":2: character 0 is a surrogate"),
        ('{"a": 1}', "has none of 'conversations', 'messages', 'turns' and 'prompt'"),
        ('{"turns": ["a"]}\nnot json', ":2: not JSON"),
        ('{"conversations": [{"from": "human"}]}', "no text"),
        ('{"conversations": ["x"]}', "no object"),
        ("\udcff", r"d\.jsonl: is not UTF-8 text"),
    ],
)
def test_an_unreadable_dataset_is_named(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(DatasetError, match=problem):
        read_dataset(path, None, None, None, 0)


@pytest.mark.parametrize("form", list(HISTORIES))
def test_a_history_grows_by_turns_and_answers(form: Form) -> None:
    history = HISTORIES[form]((1, 2))
    history.add(Turn((3,), 4))
    history.answer([7, 8], " seven")
    history.add(Turn((5,), 4))
    expected = {
        "tokens": (1, 2, 3, 7, 8, 5),
        "text": f"{words([1, 2])} {words([3])} seven {words([5])}",
        "chat": (("system", words([1, 2])), ("user", words([3])), ("assistant", " seven"), ("user", words([5]))),
    }
    prompt = history.prompt()
    assert (prompt.messages if isinstance(prompt, Chat) else prompt) == expected[form]
    assert len(set(WORDS)) == len(WORDS)


class Clockwork(Target):
    """Answers after a known time, with as many tokens as are asked for, in arrivals of two."""

    def __init__(self, step_s: float, fails_at: int = -1) -> None:
        self.info = TargetInfo("test", "clockwork", "1", "m", None, None, 100, None, "tokens")
        self.questions: list[Question] = []
        self.in_flight = self.most = 0
        self._step_s, self._fails_at = step_s, fails_at

    @override
    async def ask(self, question: Question, answer: Answer) -> None:
        self.questions.append(question)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(self._step_s)
        self.in_flight -= 1
        if len(self.questions) - 1 == self._fails_at:
            raise RequestError("429", "too many")
        for index in range(0, question.max_tokens, 2):
            answer.arrivals.append((time.perf_counter(), 2))
            answer.token_ids += [index, index + 1]
        answer.tokens = question.max_tokens
        answer.prompt_tokens, answer.cached_tokens = len(question.prompt), 1  # type: ignore[arg-type]

    @override
    async def close(self) -> None:
        pass


async def test_a_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    workload = Workload("w", 9, Lengths(4, 4), Lengths(4, 4), max_concurrent=3)
    target = Clockwork(0.001)
    run = await run_load(target, workload.draw(50, 0), "tokens", GREEDY, workload.max_concurrent)
    assert target.most == 3
    assert len(run.answers) == 9
    assert summarize(run, LIMITS)["max_in_flight"] == 3


async def test_a_turn_has_the_whole_conversation_before_it() -> None:
    conversation = Conversation(0.0, (1, 2), (Turn((3,), 2), Turn((4,), 2), Turn((5,), 2)))
    target = Clockwork(0.0)
    run = await run_load(target, [conversation], "tokens", GREEDY, None)
    assert [question.prompt for question in target.questions] == [
        (1, 2, 3),
        (1, 2, 3, 0, 1, 4),
        (1, 2, 3, 0, 1, 4, 0, 1, 5),
    ]
    line = summarize(run, LIMITS)
    assert line["cache_hit_rate_by_turn"] == [round(1 / 3, 4), round(1 / 6, 4), round(1 / 9, 4)]
    assert line["session_s"] is not None
    assert len(line["ttft_ms_by_turn"]) == 3


async def test_an_error_ends_its_conversation_and_is_counted_by_code() -> None:
    conversations = [Conversation(0.0, (), (Turn((1,), 2), Turn((2,), 2))) for _ in range(2)]
    run = await run_load(Clockwork(0.0, fails_at=0), conversations, "tokens", GREEDY, 1)
    line = summarize(run, LIMITS)
    assert (line["requests"], line["failed"], line["errors"], line["first_error"]) == (3, 1, {"429": 1}, "too many")
    assert (line["tokens"], line["good_share"]) == (4, round(2 / 3, 4))


async def test_a_conversation_that_failed_has_no_time_of_a_session() -> None:
    conversations = [Conversation(0.0, (), (Turn((1,), 2), Turn((2,), 2))) for _ in range(2)]
    run = await run_load(Clockwork(0.05, fails_at=1), conversations, "tokens", GREEDY, 1)
    assert [answer.error for answer in run.answers] == ["", "429", "", ""]
    whole = run.answers[3].ended_at - run.answers[2].sent_at
    assert summarize(run, LIMITS)["session_s"]["mean"] == pytest.approx(whole, abs=1e-3)


async def test_a_run_of_errors_alone_has_a_result() -> None:
    run = await run_load(Clockwork(0.0, fails_at=0), [Conversation(0.0, (), (Turn((1,), 2),))], "tokens", GREEDY, None)
    line = summarize(run, LIMITS)
    assert (line["tokens"], line["ttft_ms"], line["drafts"], line["cache_hit_rate"]) == (0, None, None, None)


async def test_a_load_that_is_interrupted_has_the_requests_that_ended() -> None:
    conversations = [Conversation(0.0, (), (Turn((1,), 2),)), Conversation(60.0, (), (Turn((2,), 2),))]
    ended = asyncio.Event()
    load = asyncio.create_task(
        run_load(Clockwork(0.0), conversations, "tokens", GREEDY, None, lambda answer: ended.set())
    )
    await ended.wait()
    load.cancel()
    with pytest.raises(LoadInterrupted) as caught:
        await load
    assert [answer.conversation for answer in caught.value.run.answers] == [0]


async def test_an_interrupted_run_has_a_line_that_says_so() -> None:
    lines = ResultLines(io.StringIO(), {})
    config = LoadConfig(rate=0.001, conversations=2, output_len="2", warm_up=0)
    bench = LoadBench(Clockwork(0.0), config, lines)
    ended = asyncio.Event()
    run = asyncio.create_task(bench.measure(config.resolved(), {}, lambda answer: ended.set()))
    await ended.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    [line] = lines.written
    assert (line["requests"], line["interrupted"]) == (1, True)
    assert "interrupted True" in render({"a.jsonl": [line, {**line, "interrupted": None}]}, "t")
    assert "A run was interrupted. Its line has the requests that had ended: 1." in notes([line])


async def test_the_warm_up_asks_other_prompts() -> None:
    conversations = Workload("w", 3, Lengths(8, 8), Lengths(20, 20), shared_prefix=5).draw(50, 0)
    target = Clockwork(0.0)
    await warm_up(target, conversations, "tokens", GREEDY, 2)
    assert [question.max_tokens for question in target.questions] == [8, 8]
    firsts = {(*one.shared, *one.turns[0].new) for one in conversations}
    assert not firsts & {question.prompt for question in target.questions}


def test_the_times_of_an_answer() -> None:
    known = Answer(0, 0, sent_at=1.0, ended_at=3.0, tokens=4, arrivals=[(2.0, 1), (2.6, 2), (2.8, 1)])
    assert known.ttft_s == 1.0
    assert known.tpot_s == pytest.approx(0.8 / 3)
    assert known.gaps_s() == pytest.approx([0.3, 0.3, 0.2])
    unknown = Answer(0, 0, sent_at=1.0, ended_at=3.0, tokens=6, arrivals=[(2.0, 0), (2.6, 0), (2.8, 0)])
    assert unknown.gaps_s() == pytest.approx([0.0, 0.3, 0.3, 0.1, 0.1])
    fewer = Answer(0, 0, sent_at=1.0, ended_at=3.0, tokens=2, arrivals=[(2.0, 0), (2.2, 0), (2.4, 0)])
    assert sum(fewer.gaps_s()) == pytest.approx(0.4, abs=0.21)
    assert Answer(0, 0, tokens=1, arrivals=[(2.0, 1)]).tpot_s is None


def test_goodput_needs_every_limit() -> None:
    def answer(first: float, gap: float) -> Answer:
        return Answer(
            0, 0, ended_at=first + 2 * gap, tokens=3, arrivals=[(first, 1), (first + gap, 1), (first + 2 * gap, 1)]
        )

    fine, late, slow = answer(0.1, 0.02), answer(2.0, 0.01), answer(0.1, 0.5)
    assert [LIMITS.hold(one) for one in (fine, late, slow)] == [True, False, False]
    assert not Limits(1.0, 0.05, 0.1).hold(fine)


def test_percentiles_are_milliseconds() -> None:
    assert percentiles([0.001 * n for n in range(101)]) == {
        "mean": 50.0,
        "p50": 50.0,
        "p90": 90.0,
        "p95": 95.0,
        "p99": 99.0,
    }
    assert percentiles([]) is None


def test_the_hit_rate_needs_a_server_that_tells_it() -> None:
    assert hit_rate([Answer(0, 0, prompt_tokens=10), Answer(0, 0, prompt_tokens=30)]) is None
    assert hit_rate([Answer(0, 0, prompt_tokens=10, cached_tokens=8), Answer(0, 0, prompt_tokens=30)]) == 0.8
