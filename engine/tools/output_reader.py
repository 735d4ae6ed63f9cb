"""``RequestReader``: reads a request's updates: answer, reasoning, calls and tags, and whether its JSON is whole.

The engine passes tokens and text alone. Their receiver reads them, off the step thread where it has a thread of
its own. Updates may have been merged before: what is read of an output does not depend on how its text is cut.
"""

from __future__ import annotations

import codecs
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from typing_extensions import override

from draftline.engine.chat.plan import Reading
from draftline.engine.errors import StepFailedError
from draftline.engine.outputs import Delta, Failed, Finished, Update
from draftline.engine.protocol import UpdateReader
from draftline.engine.tools.answer_reader import AnswerReader, Parts
from draftline.engine.tools.broken_json import broken_off
from draftline.structured.tags.walk import TagReader

logger = logging.getLogger(__name__)

TokenBytes = Callable[[int], bytes]
"""The bytes of a token's text in an output."""


class OutputReader:
    """Reads one output."""

    def __init__(
        self, reading: Reading | None, tags: TagReader | None, *, is_json: bool, token_bytes: TokenBytes
    ) -> None:
        """At the beginning of an output.

        Args:
            reading: how it is taken apart; None if its text is the answer.
            tags: finds the tags of its constraint; None without any.
            is_json: whether the text behind its reasoning must be JSON.
            token_bytes: the text of its tokens.
        """
        self._walk = None if tags is None else tags.begin()
        self._answer = None if reading is None else AnswerReader(reading, self._walk)
        self._json: list[str] | None = [] if is_json else None
        self._token_bytes = token_bytes
        self._tokens: list[int] = []  # until the reasoning has ended
        self._reasoning_tokens = 0

    def delta(self, delta: Delta) -> Delta:
        """Read more of the output."""
        if self._json is not None:
            self._json.append(delta.text)
        if self._answer is None:
            if self._walk is not None:
                self._walk.feed(delta.text)
            return delta
        may_reason = self._answer.may_reason
        if may_reason:
            self._tokens += delta.token_ids
        parts = self._answer.feed(delta.text)
        if may_reason and not self._answer.may_reason and self._answer.has_reasoned:
            self._reasoning_tokens = self._count(self._answer.reasoning_end)
        return _with_parts(delta, parts)

    def end(self, end: Finished) -> tuple[Update, ...]:
        """Read the end of the output. Text that was held back comes before it."""
        before: tuple[Delta, ...] = ()
        if self._answer is not None:
            parts = self._answer.finish()
            if parts.text or parts.reasoning or parts.calls:
                before = (_with_parts(Delta(end.index, (), ""), parts),)
            if self._answer.may_reason and self._answer.has_reasoned:
                self._reasoning_tokens = len(self._tokens)
            end = replace(end, tool_calls=tuple(self._answer.calls), reasoning_tokens=self._reasoning_tokens)
        elif self._walk is not None:
            end = replace(end, tags=tuple(self._walk.spans))
        if self._json is not None:
            text, at = "".join(self._json), 0 if self._walk is None else self._walk.answer_start
            if self._answer is not None:  # its text is the answer alone
                text, at = text[at:], 0
            valid = is_json(text[at:])
            end = replace(end, json_valid=valid, broken_off=None if valid else broken_off(text, at))
        return *before, end

    def _count(self, characters: int) -> int:
        """How many tokens the first characters of the output take."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for count, token in enumerate(self._tokens, 1):
            characters -= len(decoder.decode(self._token_bytes(token)))
            if characters <= 0:
                return count
        return len(self._tokens)


class RequestReader(UpdateReader):
    """Reads the outputs of one request. One thread at a time uses it."""

    def __init__(self, outputs: Sequence[OutputReader]) -> None:
        """At the beginning of each output."""
        self._outputs = outputs
        self._left = len(outputs)
        self._has_failed = False

    @property
    @override
    def is_over(self) -> bool:
        return not self._left

    @override
    def read(self, update: Update) -> tuple[Update, ...]:
        if update.ends_output:
            self._left = 0 if update.ends_request else self._left - 1
        if self._has_failed:
            return ()
        try:
            match update:
                case Delta():
                    return (self._outputs[update.index].delta(update),)
                case Finished():
                    return self._outputs[update.index].end(update)
                case Failed():
                    return (update,)
        except Exception as error:
            logger.error("an output cannot be read", exc_info=error)
            self._has_failed = True
            failure = StepFailedError()
            failure.__cause__ = error
            return (Failed(failure),)


def _with_parts(delta: Delta, parts: Parts) -> Delta:
    """A delta with the parts of its text."""
    return Delta(
        delta.index,
        delta.token_ids,
        parts.text,
        delta.logprobs,
        delta.prompt_logprobs,
        parts.reasoning,
        tuple(parts.calls),
    )


def is_json(text: str) -> bool:
    """Whether a text is one JSON document by RFC 8259, which has no NaN and no infinities."""

    def reject(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        json.loads(text, parse_constant=reject)
    except (ValueError, RecursionError):
        return False
    return True
