"""Special tokens as marks.

A special token stands for no text, so no text of a constraint can be written with it. But a mark may be its name: the
name is then written by the token, or by its characters. The automaton reads the token as its name between two bytes that
UTF-8 does not have, so the token can appear in marks alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from draftline.structured.language import Form
from draftline.structured.tags.form import marks

ESCAPE = 0xFF
"""The byte around the name of a special token. No text has it."""


def special_bytes(name: str) -> bytes:
    """What an automaton reads for a special token. None of them begins with another's."""
    return bytes([ESCAPE, *name.encode(), ESCAPE])


class SpecialNames:
    """Finds the names of special tokens in marks."""

    def __init__(self, names: Collection[str]) -> None:
        """``names`` are the names of special tokens; none is empty."""
        longest_first = sorted(names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def split(self, mark: str) -> Iterator[tuple[str, bool]]:
        """The parts of a mark, each with whether it is a name. Of several names at one position, the longest counts."""
        end = 0
        for found in self._pattern.finditer(mark):
            if found.start() > end:
                yield mark[end : found.start()], False
            yield found[0], True
            end = found.end()
        if end < len(mark):
            yield mark[end:], False

    def spans(self, mark: str) -> Iterator[tuple[int, int, str]]:
        """Each name in a mark, with where it begins and ends in the mark's UTF-8."""
        at = 0
        for part, is_name in self.split(mark):
            after = at + len(part.encode())
            if is_name:
                yield at, after, part
            at = after


NO_NAMES = SpecialNames(())
"""Without special tokens."""


def marking_tokens(form: Form, special_names: Mapping[str, int]) -> dict[str, int]:
    """The special tokens whose names are in the marks of a form, by name."""
    names = SpecialNames(special_names)
    return {part: special_names[part] for mark in set(marks(form)) for part, is_name in names.split(mark) if is_name}


def with_names(tokens: Sequence[bytes], special_names: Mapping[str, int]) -> tuple[bytes, ...]:
    """The tokens of a vocabulary, as automata read them: those without such marks have no moves for special tokens."""
    if not special_names:
        return tuple(tokens)
    # Tokens for single bytes must not spell a special token.
    read = [b"" if ESCAPE in token else token for token in tokens]
    for name, token in special_names.items():
        read[token] = special_bytes(name)
    return tuple(read)
