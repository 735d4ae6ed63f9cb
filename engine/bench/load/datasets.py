"""Datasets: files of conversations, in ShareGPT's form or in Spec-Bench's."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftline.engine.bench.load.workloads import Turn
from draftline.engine.errors import DraftlineError, unreadable

_CHARACTERS_A_TOKEN = 4
_USERS = frozenset({"human", "user"})
_MODELS = frozenset({"gpt", "assistant", "chatgpt", "model"})


class DatasetError(DraftlineError, ValueError):
    """A dataset cannot be read. The message names the file and the entry."""


def read_dataset(
    path: Path, conversations: int | None, turns: int | None, output_len: int | None, seed: int
) -> list[tuple[Turn, ...]]:
    """Read the users' turns of a file: one JSON list, or JSON lines.

    An entry of ShareGPT has ``conversations`` (or ``messages``) with a speaker and a text each; one of Spec-Bench has
    ``turns``, texts of the user. A ShareGPT answer says how long ours may be: a token for four of its characters.

    Args:
        path: the file.
        conversations: how many to draw; all, in the file's order, where None.
        turns: the most turns of a conversation; all where None.
        output_len: the most tokens of an answer; as the dataset says, or 256, where None.
        seed: of the draw.

    Raises:
        DatasetError: the file cannot be read, or an entry has neither form.
    """
    found = [
        made
        for where, entry in _entries(path)
        if (made := _turns(where, entry, output_len)[:turns])  # a ShareGPT entry may have no user's turn
    ]
    if not found:
        raise DatasetError(f"{path}: has no conversation")
    if conversations is None:
        return found
    if conversations > len(found):
        raise DatasetError(f"{path}: has {len(found)} conversations, not {conversations}")
    return random.Random(seed).sample(found, conversations)


def _entries(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: {unreadable(error)}") from None
    try:
        if text.lstrip().startswith("["):
            listed = [(f"{path}[{index}]", entry) for index, entry in enumerate(json.loads(text))]
        else:
            lines = enumerate(text.splitlines(), 1)
            listed = []
            for number, line in lines:
                if line.strip():
                    try:
                        listed.append((f"{path}:{number}", json.loads(line)))
                    except ValueError as error:
                        raise DatasetError(f"{path}:{number}: not JSON: {error}") from None
    except json.JSONDecodeError as error:
        raise DatasetError(f"{path}: not JSON: {error}") from None
    for where, entry in listed:
        if not isinstance(entry, dict):
            raise DatasetError(f"{where}: must be an object with 'conversations' or 'turns'")
    return listed


def _turns(where: str, entry: Mapping[str, Any], output_len: int | None) -> tuple[Turn, ...]:
    if "turns" in entry:
        texts = entry["turns"]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DatasetError(f"{where}: 'turns' must be a list of texts")
        return tuple(Turn((), output_len or 256, text) for text in texts)
    messages = entry.get("conversations", entry.get("messages"))
    if not isinstance(messages, list):
        raise DatasetError(f"{where}: has neither 'conversations' nor 'turns'")
    return _speakers_turns(where, messages, output_len)


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
            turns.append(Turn((), output_len or 256, text))
        elif speaker in _MODELS and turns and output_len is None:
            turns[-1] = Turn((), max(1, len(text) // _CHARACTERS_A_TOKEN), turns[-1].text)
    return tuple(turns)
