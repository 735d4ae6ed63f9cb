"""The items of a response's output: a message, reasoning and calls, in the order in which they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from draftline.engine.chat.calls import ToolCallDelta
from draftline.engine.server.http.answers import new_id

Events = Iterator[tuple[str, dict[str, Any]]]
"""Names and fields of events."""


class Items:
    """The items of one response."""

    def __init__(self) -> None:
        """No item yet."""
        self._items: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    @property
    def last(self) -> str | None:
        """The type of the last item; None without any."""
        return self._items[-1]["type"] if self._items else None

    def add_text(self, text: str, logprobs: list[dict[str, Any]]) -> Events:
        """More of the message."""
        yield from self._begin("message")
        self._texts[-1] += text
        self._logprobs += logprobs
        yield "response.output_text.delta", {**self._part_place, "delta": text, "logprobs": _briefly(logprobs)}

    def add_reasoning(self, text: str) -> Events:
        """More of the reasoning."""
        yield from self._begin("reasoning")
        self._texts[-1] += text
        yield "response.reasoning_text.delta", {**self._part_place, "delta": text}

    def add_call(self, part: ToolCallDelta) -> Events:
        """A part of a call."""
        if part.id:
            yield from self._end("completed")
            item = {"call_id": part.id, "name": part.name, "arguments": ""}
            yield from self._added({"type": "function_call", "id": new_id("fc_"), "status": "in_progress", **item})
        self._texts[-1] += part.arguments
        if part.arguments:
            yield "response.function_call_arguments.delta", {**self._place, "delta": part.arguments}

    def end(self, status: str) -> Events:
        """The events after the last part. Without any part, the message is empty."""
        if not self._items:
            yield from self._begin("message")
        yield from self._end(status)

    def whole(self) -> list[dict[str, Any]]:
        """All items as far as they have come, but no call whose arguments broke off: it cannot be made or sent back."""
        return [item for item in self._items if (item["type"], item["status"]) != ("function_call", "incomplete")]

    def _begin(self, kind: str) -> Events:
        if self._items and self._items[-1]["type"] == kind and self._items[-1]["status"] == "in_progress":
            return
        yield from self._end("completed")
        if kind == "message":
            self._logprobs = []
            fields: dict[str, Any] = {"id": new_id("msg_"), "status": "in_progress", "role": "assistant", "content": []}
        else:
            fields = {"id": new_id("rs_"), "status": "in_progress", "summary": [], "content": []}
        yield from self._added({"type": kind, **fields})
        yield "response.content_part.added", {**self._part_place, "part": self._part()}

    def _added(self, item: dict[str, Any]) -> Events:
        self._items.append(item)
        self._texts.append("")
        yield "response.output_item.added", {"output_index": len(self._items) - 1, "item": dict(item)}

    def _end(self, status: str) -> Events:
        if not self._items or self._items[-1]["status"] != "in_progress":
            return
        item, text = self._items[-1], self._texts[-1]
        item["status"] = status
        if item["type"] == "function_call":
            # A stop string may break off arguments, though the response is complete. A limit may come behind them.
            item["arguments"], item["status"] = text, "completed" if is_object(text) else "incomplete"
            yield "response.function_call_arguments.done", {**self._place, "name": item["name"], "arguments": text}
        else:
            part = self._part()
            item["content"] = [part]
            if item["type"] == "message":
                done = {"text": text, "logprobs": _briefly(self._logprobs)}
                yield "response.output_text.done", {**self._part_place, **done}
            else:
                yield "response.reasoning_text.done", {**self._part_place, "text": text}
            yield "response.content_part.done", {**self._part_place, "part": part}
        yield "response.output_item.done", {"output_index": len(self._items) - 1, "item": dict(item)}

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    @property
    def _part_place(self) -> dict[str, Any]:
        return {**self._place, "content_index": 0}

    def _part(self) -> dict[str, Any]:
        if self._items[-1]["type"] == "reasoning":
            return {"type": "reasoning_text", "text": self._texts[-1]}
        return {"type": "output_text", "text": self._texts[-1], "annotations": [], "logprobs": self._logprobs}


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(from_json(text), dict)
    except ValueError:
        return False


def _briefly(logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Log-probabilities as events have them: without bytes."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [{"token": top["token"], "logprob": top["logprob"]} for top in entry["top_logprobs"]],
        }
        for entry in logprobs
    ]
