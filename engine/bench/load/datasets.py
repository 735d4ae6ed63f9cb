"""Datasets: files of prompts and of conversations, in ShareGPT's form or in Spec-Bench's."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from draftline.engine.bench.json_lines import FileError, json_lines, parse_json, read_text
from draftline.engine.bench.load.workloads import Turn
from draftline.engine.errors import DraftlineError, no_unicode

DEFAULT_OUTPUT_LEN = 256
"""The most tokens of an answer where neither the dataset nor the user says it."""

_CHARACTERS_A_TOKEN = 4
_USERS = frozenset({"human", "user"})
_MODELS = frozenset({"gpt", "assistant", "chatgpt", "model"})


class DatasetError(DraftlineError, ValueError):
    """A dataset cannot be read. The message names the file and the entry."""


def read_dataset(
    path: Path, conversations: int | None, turns: int | None, output_len: int | None, seed: int
) -> list[tuple[Turn, ...]]:
    """Read the users' turns of a file: one JSON list, or JSON lines.

    An entry is a text, or an object with a ``prompt``. An entry of ShareGPT has ``conversations`` (or ``messages``)
    with a speaker and a text each; one of Spec-Bench has ``turns``, texts of the user. A ShareGPT answer says how long
    ours may be: a token for four of its characters.

    Args:
        path: the file.
        conversations: how many to draw; all, in the file's order, where None.
        turns: the most turns of a conversation; all where None.
        output_len: the most tokens of an answer; as the dataset says, or `DEFAULT_OUTPUT_LEN`, where None.
        seed: of the draw.

    Raises:
        DatasetError: the file cannot be read, or an entry has neither form.
    """
    try:
        found = [
            made
            for where, entry in _entries(path)
            if (made := _turns(where, entry, output_len)[:turns])  # a ShareGPT entry may have no user's turn
        ]
    except FileError as error:
        raise DatasetError(str(error)) from None
    if not found:
        raise DatasetError(f"{path}: has no conversation")
    if conversations is None:
        return found
    if conversations > len(found):
        raise DatasetError(f"{path}: has {len(found)} conversations, not {conversations}")
    return random.Random(seed).sample(found, conversations)


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Each entry with its place."""
    text = read_text(path)
    if not text.lstrip().startswith("["):
        yield from json_lines(path, text)
        return
    for index, entry in enumerate(parse_json(str(path), text)):
        yield f"{path}[{index}]", entry


def _turns(where: str, entry: Any, output_len: int | None) -> tuple[Turn, ...]:
    if isinstance(entry, str):
        entry = {"prompt": entry}
    if not isinstance(entry, dict):
        raise DatasetError(f"{where}: must be a text or an object")
    if "prompt" in entry:
        texts = [entry["prompt"]]
    elif "turns" in entry:
        texts = entry["turns"]
    else:
        messages = entry.get("conversations", entry.get("messages"))
        if not isinstance(messages, list):
            raise DatasetError(f"{where}: has none of 'conversations', 'messages', 'turns' and 'prompt'")
        return _speakers_turns(where, messages, output_len)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DatasetError(f"{where}: 'prompt' must be a text, and 'turns' a list of texts")
    return tuple(_turn(where, text, output_len) for text in texts)


def _turn(where: str, text: str, output_len: int | None) -> Turn:
    if (problem := no_unicode(text)) is not None:
        raise DatasetError(f"{where}: {problem}")
    return Turn((), output_len or DEFAULT_OUTPUT_LEN, text)


def _speakers_turns(where: str, messages: Sequence[Any], output_len: int | None) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for message in messages:
        try:
            speaker = message.get("from", message.get("role"))
            text = message.get("value", message.get("content"))
        except AttributeError:
            raise DatasetError(f"{where}: a message is no object") from None
        if not isinstance(text, str):
            raise DatasetError(f"{where}: a message has no text")
        if speaker in _USERS:
            turns.append(_turn(where, text, output_len))
        elif speaker in _MODELS and turns and output_len is None:
            turns[-1] = Turn((), max(1, len(text) // _CHARACTERS_A_TOKEN), turns[-1].text)
    return tuple(turns)
