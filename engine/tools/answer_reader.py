"""``AnswerReader``: takes the output of a chat apart, while it comes: its answer, its reasoning and its calls.

It follows the walk through the output's constraint (`draftline.structured.tags.walk`), so it finds the calls that the
constraint means, and not what looks like one.
"""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass, field
from functools import lru_cache

from draftline.engine.chat.calls import ToolCall, ToolCallDelta
from draftline.engine.chat.plan import Reading
from draftline.engine.tools.python_call import json_arguments
from draftline.structured.language import Free
from draftline.structured.tags.form import REASONING, form_language, with_reasoning
from draftline.structured.tags.json_scan import JsonScan
from draftline.structured.tags.walk import TagReader, TagWalk

_ID = string.ascii_letters + string.digits


@dataclass(slots=True)
class Parts:
    """New parts of an output.

    Attributes:
        text: of the answer.
        reasoning: of the reasoning.
        calls: parts of calls.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)


@lru_cache(maxsize=8)
def _free_reader(begin: str, end: str, required: bool) -> TagReader:
    """The reader of any text with reasoning."""
    form = with_reasoning(form_language(Free()), begin, end, required=required, is_json=False).form
    assert form is not None, "it is made of parts"
    return TagReader(form)


def _possible_start(text: str, mark: str) -> int:
    """Where the longest end of a text starts that may begin the mark; the text's length if there is none."""
    at = text.find(mark[0], max(0, len(text) - len(mark) + 1))
    while at >= 0 and not mark.startswith(text[at:]):
        at = text.find(mark[0], at + 1)
    return len(text) if at < 0 else at


class AnswerReader:
    """Takes one output apart.

    Attributes:
        calls: the calls that the output has completed.
        has_answered: whether any text of the answer has come.
        has_reasoned: whether reasoning has begun.
    """

    def __init__(self, reading: Reading, walk: TagWalk | None) -> None:
        """At the beginning of an output.

        Args:
            reading: how the chat's outputs are taken apart.
            walk: of the output's constraint, at its beginning; None without a constraint.
        """
        if walk is None:
            assert reading.reasoning is not None, "without reasoning and calls there is nothing to read"
            begin, end = reading.reasoning
            walk = _free_reader("" if reading.is_open else begin, end, reading.is_open).begin()
        self._reading = reading
        self._walk = walk
        self._tools = dict(reading.calls)
        self._marks = reading.reasoning or ("", "")
        self._held = ""
        self._open = walk.open(in_every_reading=not reading.or_json)  # the tags that are open
        self._step = self._in_reasoning if reading.is_open else self._in_answer
        self._may_reason = reading.reasoning is not None and not reading.is_open
        self.has_reasoned = reading.is_open
        self._in_calls = reading.only_calls
        self._tag = ""
        self._begun_at = -1
        self._scan = JsonScan()
        self._arguments: list[str] = []
        self._id = ""
        self.calls: list[ToolCall] = []
        self.has_answered = False

    @property
    def may_reason(self) -> bool:
        """Whether the output is in its reasoning, or may still begin some."""
        return self._step == self._in_reasoning or (self._may_reason and not self.has_answered)

    @property
    def reasoning_end(self) -> int:
        """Where the reasoning has ended, in characters of the output."""
        return self._walk.answer_start

    def feed(self, text: str) -> Parts:
        """Read more of the output."""
        parts = Parts()
        if text and self._walk.feed_plain(text):
            self._held += text
            self._step(parts)
        else:
            for character in text:
                self._walk.feed(character)
                # Inside JSON the walk checks nothing, so it takes a call for an answer in JSON too.
                self._open = self._walk.open(in_every_reading=not self._reading.or_json)
                self._held += character
                self._step(parts)
        return parts

    def finish(self) -> Parts:
        """Read the end of the output. A mark or a call that is not complete is no part of the answer."""
        parts = Parts()
        if self._step == self._in_reasoning:
            parts.reasoning += self._held
        elif self._step == self._in_answer and not self._in_calls:
            trigger = self._reading.trigger
            rest = self._held.partition(trigger)[0] if trigger else self._held
            if rest.strip() or not (self.calls or self.has_reasoned):
                self._answer(parts, rest)
        self._held = ""
        return parts

    def _in_answer(self, parts: Parts) -> None:
        for name, start in self._open.items():
            if name == REASONING:
                self._held, self._may_reason, self.has_reasoned = "", False, True
                self._step = self._in_reasoning
                return
            if name in self._tools and start != self._begun_at:
                self._begin_call(parts, name, start)
                return
        if self._in_calls:
            return  # what stands around calls
        safe = self._safe()
        if safe:
            self._answer(parts, self._held[:safe])
            self._held = self._held[safe:]

    def _safe(self) -> int:
        """How many of the held characters are certainly the answer's."""
        held, reading = self._held, self._reading
        if self._may_reason and not self.has_answered and self._marks[0].startswith(held):
            return 0
        if not reading.begins:
            return len(held)
        if not reading.trigger:
            start = held.lstrip()
            possible = any(start.startswith(begin) or begin.startswith(start) for begin in reading.begins)
            return 0 if possible and not self.has_answered else len(held)
        trigger = reading.trigger
        at = held.find(trigger)
        if at < 0:
            at = _possible_start(held, trigger)
        # White space before a call is no answer.
        return len(held[:at].rstrip())

    def _answer(self, parts: Parts, text: str) -> None:
        if not self.has_answered and self.has_reasoned:
            text = text.lstrip()
        self.has_answered = self.has_answered or bool(text)
        parts.text += text

    def _in_reasoning(self, parts: Parts) -> None:
        end = self._marks[1]
        if REASONING not in self._open:
            parts.reasoning += self._held.removesuffix(end)
            self._held = ""
            self._step = self._in_answer
            return
        safe = _possible_start(self._held, end)
        parts.reasoning += self._held[:safe]
        self._held = self._held[safe:]

    def _begin_call(self, parts: Parts, name: str, start: int) -> None:
        how = self._reading.tool_format
        assert how is not None, "there are tools"
        before = self._held.partition(self._reading.trigger)[0] if self._reading.trigger else ""
        if before.strip() and not self._in_calls:
            self._answer(parts, before)
        self._held, self._arguments = "", []
        self._tag, self._begun_at = name, start
        self._id = "".join(secrets.choice(_ID) for _ in range(9))
        parts.calls.append(ToolCallDelta(len(self.calls), self._id, self._tools[name]))
        self._scan = JsonScan()
        self._step = self._in_json if how.arguments == "json" else self._in_python

    def _in_json(self, parts: Parts) -> None:
        held, self._held = self._held, ""
        self._scan, used = self._scan.read(held)
        self._add_arguments(parts, held[:used])
        if self._scan.complete:
            self._end_call()
            self._held = held[used:]
            if self._held:
                self._step(parts)

    def _in_python(self, parts: Parts) -> None:
        if self._tag not in self._open:
            how = self._reading.tool_format
            assert how is not None, "there are tools"
            self._add_arguments(parts, json_arguments(self._held.removesuffix(how.end)))
            self._end_call()
            self._after_call(parts)

    def _add_arguments(self, parts: Parts, text: str) -> None:
        self._arguments.append(text)
        index = len(self.calls)
        if parts.calls and parts.calls[-1].index == index:
            last = parts.calls[-1]
            parts.calls[-1] = ToolCallDelta(index, last.id, last.name, last.arguments + text)
        else:
            parts.calls.append(ToolCallDelta(index, arguments=text))

    def _end_call(self) -> None:
        self.calls.append(ToolCall(self._id, self._tools[self._tag], "".join(self._arguments)))
        how, reading = self._reading.tool_format, self._reading
        assert how is not None, "there are tools"
        # Behind a tag of its own there is free text again.
        self._in_calls = not reading.trigger or bool(how.open)
        self._held = ""
        self._step = self._after_call if how.end else self._in_answer

    def _after_call(self, parts: Parts) -> None:
        if self._tag not in self._open:
            self._held = ""
            self._step = self._in_answer
