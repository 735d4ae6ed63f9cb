"""The updates of a request, as their receiver reads them: however the deltas were merged, and whichever thread reads."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from draftline.engine.chat.calls import ToolCallDelta
from draftline.engine.chat.plan import Reading
from draftline.engine.errors import StepFailedError
from draftline.engine.outputs import (
    Delta,
    Failed,
    Finished,
    FinishReason,
    SpeculationStats,
    Timing,
    Update,
    Usage,
)
from draftline.engine.streaming.mailbox import Hub, Mailbox
from draftline.engine.tools.formats import FORMATS
from draftline.engine.tools.output_reader import OutputReader, RequestReader
from draftline.structured.constraint import ConstraintSpec, language
from draftline.structured.tags.walk import TagReader

HERMES = FORMATS["hermes"]
TAG: dict[str, Any] = {
    "begin": HERMES.begin("f"),
    "content": {"type": "json_schema", "json_schema": {"type": "object"}},
    "end": HERMES.end,
}
FORM = {"type": "triggered_tags", "triggers": [HERMES.trigger], "tags": [TAG]}
CALLS = ConstraintSpec("structural_tag", json.dumps({"type": "structural_tag", "format": FORM}))
READING = Reading(HERMES, (("/format/tags/0", "f"),), HERMES.trigger, (HERMES.begin("f"),))
THINK = Reading(reasoning=("<think>", "</think>"))


def tags(spec: ConstraintSpec) -> TagReader:
    form = language(spec).form
    assert form is not None
    return TagReader(form)


def end(index: int = 0) -> Finished:
    usage, timing = Usage(1, 0, 1), Timing(0, 0, 0, 0)
    return Finished(index, FinishReason.EOS, "", usage, SpeculationStats(), timing, None, 1)


def deltas(text: str, sizes: Sequence[int]) -> list[Delta]:
    """A text whose tokens are bytes, in deltas of these sizes."""
    data = text.encode()
    made: list[Delta] = []
    shown = at = 0
    for size in (*sizes, len(data)):
        at = min(len(data), at + size)
        whole = data[:at].decode(errors="ignore")
        made.append(Delta(0, tuple(data[sum(len(d.token_ids) for d in made) : at]), whole[shown:]))
        shown = len(whole)
    return made


def read(reader: OutputReader, text: str, sizes: Sequence[int]) -> tuple[str, str, list[tuple[str, str]], Finished]:
    """The answer, the reasoning, the streamed calls and the end of an output."""
    request = RequestReader([reader])
    updates: list[Update] = [each for delta in (*deltas(text, sizes), end()) for each in request.read(delta)]
    assert request.is_over
    *parts, last = updates
    assert isinstance(last, Finished)
    calls: list[tuple[str, str]] = []
    for part in parts:
        assert isinstance(part, Delta)
        for call in part.tool_calls:
            calls += [(call.name, "")] if call.id else []
            calls[-1] = calls[-1][0], calls[-1][1] + call.arguments
    texts = [part for part in parts if isinstance(part, Delta)]
    return "".join(part.text for part in texts), "".join(part.reasoning for part in texts), calls, last


def cuts(text: str) -> list[list[int]]:
    source = random.Random(text)
    return [[1] * len(text.encode()), [], *([source.randrange(1, 9) for _ in range(len(text))] for _ in range(4))]


def reader(reading: Reading | None, found: TagReader | None = None, *, is_json: bool = False) -> OutputReader:
    return OutputReader(reading, found, is_json=is_json, token_bytes=lambda token: bytes([token]))


@pytest.mark.parametrize(
    ("text", "answer", "reasoning", "tokens"),
    [
        ("<think>ab</think>\n\nHi", "Hi", "ab", 17),
        ("<think>Łódź</think>Hi", "Hi", "Łódź", 22),
        ("<think>ab</thi", "", "ab</thi", 14),
        ("<thin air", "<thin air", "", 0),
        ("Hi", "Hi", "", 0),
    ],
)
def test_reasoning_is_counted_to_the_token(text: str, answer: str, reasoning: str, tokens: int) -> None:
    for sizes in cuts(text):
        got, thought, _, last = read(reader(THINK), text, sizes)
        assert (got, thought, last.reasoning_tokens) == (answer, reasoning, tokens)


def test_calls_do_not_depend_on_merging_or_on_the_thread() -> None:
    call = HERMES.begin("f") + '{"a": "}</tool_call>é"}' + HERMES.end
    text = f"Ja: {call}\n{call} nö <tool_c"
    shared = tags(CALLS)

    def once(sizes: Sequence[int]) -> None:
        got, _, calls, last = read(reader(READING, shared), text, sizes)
        assert got == "Ja: nö <tool_c"
        assert calls == [("f", '{"a": "}</tool_call>é"}')] * 2
        assert [(each.name, each.arguments) for each in last.tool_calls] == calls

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(once, cuts(text) * 8))


def test_tags_and_json_are_told_at_the_end() -> None:
    text = "so " + HERMES.begin("f") + "{}" + HERMES.end
    _, _, _, tagged = read(reader(None, tags(CALLS)), text, [3, 1])
    [span] = tagged.tags
    assert text[span.content_start : span.content_end] == "{}"
    for whole, valid, pointer in (('{"a": [1]}', True, None), ('{"a": [1', False, "/a")):
        last = read(reader(None, is_json=True), whole, [2, 2])[3]
        assert last.json_valid is valid
        assert (None if last.broken_off is None else last.broken_off.pointer[:2]) == pointer


class Broken(OutputReader):
    """Fails at its second delta."""

    def __init__(self) -> None:
        super().__init__(None, None, is_json=False, token_bytes=lambda token: b"")
        self._left = 1

    def delta(self, delta: Delta) -> Delta:
        if not self._left:
            raise RuntimeError("a fault")
        self._left -= 1
        return delta


async def test_a_fault_of_the_reading_ends_its_request_alone() -> None:
    mailbox = Mailbox(Hub(asyncio.get_running_loop()))
    mailbox.read_with("a", RequestReader([Broken()]))
    mailbox.read_with("b", RequestReader([reader(None)]))
    got: list[tuple[str, Update]] = []
    for step in range(3):
        mailbox.put([(name, Delta(0, (step,), "x")) for name in "ab"])
        got += await mailbox.take()
    mailbox.put([(name, end()) for name in "ab"])
    got += await mailbox.take()
    of_a = [update for name, update in got if name == "a"]
    assert isinstance(of_a[1], Failed)
    assert isinstance(of_a[1].error, StepFailedError)
    assert len(of_a) == 2
    assert [type(update) for name, update in got if name == "b"] == [Delta, Delta, Delta, Finished]


async def test_merged_deltas_are_read_once() -> None:
    mailbox = Mailbox(Hub(asyncio.get_running_loop()))
    mailbox.read_with("a", RequestReader([reader(READING, tags(CALLS))]))
    for delta in deltas(HERMES.begin("f") + "{}" + HERMES.end, [1] * 20):
        mailbox.put([("a", delta)])
    [(_, update)] = await mailbox.take()
    assert isinstance(update, Delta)
    [part] = update.tool_calls
    assert part == ToolCallDelta(0, part.id, "f", "{}")
