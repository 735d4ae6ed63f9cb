"""``CacheJournal``: what the prefix tree knows, told to whoever routes requests to where their beginning is cached.

Blocks are named by a hash of their tokens and all before them, so that the same beginning has the same name on every
server. The step thread writes; readers are on other threads, and never make it wait for them.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

MAX_UNREAD = 1 << 16
"""Changes that a reader may leave unread; one that is slower begins anew with all that is known."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A block became known: its name, that of the block before it (None for a first), and its tokens."""

    name: int
    parent: int | None
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """A block was given up."""

    name: int


Change = Stored | Removed


class Reader:
    """One who follows the journal, from everything that is known on."""

    def __init__(self, journal: CacheJournal, wake: Callable[[], object]) -> None:
        """`CacheJournal.follow` makes these."""
        self._journal = journal
        self._wake = wake
        self._unread: list[Change] | None = None

    def note(self, change: Change) -> None:
        """Take a change; the journal calls it, under its lock."""
        if self._unread is None:
            return  # to be told everything anyway
        if not self._unread:
            self._wake()
        self._unread.append(change)
        if len(self._unread) > MAX_UNREAD:
            self._unread = None

    def take(self) -> tuple[bool, Sequence[Change]]:
        """What has changed; or, at first and after too much was left unread, (True, all that is known, parents first)."""
        with self._journal.lock:
            if self._unread is None:
                self._unread = []
                return True, self._journal.known()
            changes, self._unread = self._unread, []
            return False, changes

    def close(self) -> None:
        """Hear no more."""
        self._journal.forget(self)


class CacheJournal:
    """The journal of one prefix tree.

    Attributes:
        lock: held while the journal changes.
    """

    def __init__(self) -> None:
        """Nothing is known, and nobody reads."""
        self.lock = threading.Lock()
        self._known: dict[int, Stored] = {}
        self._readers: set[Reader] = set()

    def stored(self, block: int, parent: int, tokens: tuple[int, ...]) -> None:
        """``block`` holds ``tokens`` after those of the known block ``parent``, or is a first one where that is unknown."""
        with self.lock:
            before = self._known.get(parent)
            name = _name(before.name if before else 0, tokens)
            change = Stored(name, before.name if before else None, tokens)
            self._known[block] = change
            self._tell(change)

    def removed(self, block: int) -> None:
        """``block`` was given up."""
        with self.lock:
            self._tell(Removed(self._known.pop(block).name))

    def follow(self, wake: Callable[[], object]) -> Reader:
        """Begin to read. ``wake`` is called, on the step thread, when there is something to read again."""
        reader = Reader(self, wake)
        with self.lock:
            self._readers.add(reader)
        return reader

    def forget(self, reader: Reader) -> None:
        """Tell ``reader`` no more."""
        with self.lock:
            self._readers.discard(reader)

    def known(self) -> list[Stored]:
        """All that is known, parents first: a block becomes known after its parent, and is given up before. Under the lock."""
        return list(self._known.values())

    def _tell(self, change: Change) -> None:
        for reader in self._readers:
            reader.note(change)


def _name(parent: int, tokens: tuple[int, ...]) -> int:
    """63 bits: never negative, and 0 only for what comes before a first block."""
    data = struct.pack(f"<q{len(tokens)}I", parent, *tokens)
    return (int.from_bytes(blake2b(data, digest_size=8).digest(), "little") >> 1) or 1
