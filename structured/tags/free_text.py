"""Free text as an automaton over bytes: well-formed UTF-8 in which an Aho-Corasick automaton looks for texts.

Aho, Corasick: Efficient string matching: an aid to bibliographic search (1975).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_LEADS = {0xE0: 4, 0xED: 5, 0xF0: 6, 0xF4: 7}
_FIRST = {4: (0xA0, 0xBF, 1), 5: (0x80, 0x9F, 1), 6: (0x90, 0xBF, 2), 7: (0x80, 0x8F, 2)}


def _utf8(state: int, byte: int) -> int:
    """The state of well-formed UTF-8 after a byte: 0 between characters; -1 if it is ill-formed."""
    if state == 0:
        if byte < 0x80:
            return 0
        if byte in _LEADS:
            return _LEADS[byte]
        if 0xC2 <= byte < 0xE0:
            return 1
        if 0xE0 < byte < 0xF0:
            return 2
        return 3 if 0xF0 < byte < 0xF4 else -1
    low, high, after = _FIRST.get(state, (0x80, 0xBF, state - 1))
    return after if low <= byte <= high else -1


class _Searcher:
    """Aho and Corasick's automaton of several texts."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.moves: list[dict[int, int]] = [{}]
        self.found: list[frozenset[int]] = [frozenset()]
        self._fail = [0]
        for index, text in enumerate(texts):
            node = 0
            for byte in text:
                if byte not in self.moves[node]:
                    self.moves[node][byte] = len(self.moves)
                    self.moves.append({})
                    self.found.append(frozenset())
                    self._fail.append(0)
                node = self.moves[node][byte]
            self.found[node] |= {index}
        queue = deque(self.moves[0].values())
        while queue:
            node = queue.popleft()
            self.found[node] |= self.found[self._fail[node]]
            for byte, child in self.moves[node].items():
                self._fail[child] = self.step(self._fail[node], byte)
                queue.append(child)

    def step(self, node: int, byte: int) -> int:
        """The longest prefix of a text that ends here."""
        while node and byte not in self.moves[node]:
            node = self._fail[node]
        return self.moves[node].get(byte, 0)


@dataclass(frozen=True, slots=True)
class FreeText:
    """States of free text; state 0 is the beginning.

    Attributes:
        rows: for each state, 256 next states; -1 for a byte that cannot follow, and ``-2 - t`` where it completes trigger
            t: the longest one, if it completes several.
        between: for each state, whether it is between characters.
    """

    rows: list[list[int]]
    between: list[bool]


def free_text(triggers: Sequence[str], excluded: Sequence[str]) -> FreeText:
    """The automaton of free text up to the first trigger.

    Args:
        triggers: none is empty.
        excluded: none is empty. A trigger that completes one of them cannot appear.
    """
    searcher = _Searcher([text.encode() for text in (*triggers, *excluded)])
    numbers = {(0, 0): 0}
    queue = [(0, 0)]
    rows: list[list[int]] = []
    for utf8, node in queue:
        row: list[int] = []
        for byte in range(256):
            after = _utf8(utf8, byte)
            if after < 0:
                row.append(-1)
                continue
            target = searcher.step(node, byte)
            found = searcher.found[target]
            if found and max(found) >= len(triggers):
                row.append(-1)
            elif found:
                row.append(-2 - max(found, key=lambda index: len(triggers[index].encode())))
            else:
                state = numbers.setdefault((after, target), len(queue))
                if state == len(queue):
                    queue.append((after, target))
                row.append(state)
        rows.append(row)
    return FreeText(rows, [utf8 == 0 for utf8, _ in queue])
