"""The cache journal: the changes of the prefix tree, for gateways that route requests to where their prefix is cached.

Gateways know a block by a hash of its tokens and all tokens before it: the same prefix has the same hash on every
server. The journal knows blocks by their numbers, so that the step thread computes no hash. Readers do, on their own
threads.

One thread writes: the step thread, or in a server process whose engine is in another one, the thread that receives that
engine's events. Readers hold the lock only for short copies.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

MAX_UNREAD = 1 << 16
"""Maximum number of changes that a reader may leave unread. A slower reader starts again with all known blocks."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A block became known.

    Attributes:
        block_hash: its hash.
        parent_hash: the hash of the block before it; None for the first block of a prefix.
        tokens: its tokens.
    """

    block_hash: int
    parent_hash: int | None
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block was evicted."""

    block_hash: int


Change = BlockStored | BlockRemoved

BlockKey = tuple[int, tuple[int, ...]]
"""The number of the block before a block, and the block's tokens. If that number is of no known block, it is the first
of a prefix."""

Event = tuple[int, BlockKey] | int
"""A block that became known, by its number, or the number of one that was evicted. An object each would cost the step
thread time."""


class JournalReader:
    """Follows the journal, first with all known blocks and then with the changes."""

    def __init__(self, journal: CacheJournal, wake: Callable[[], object]) -> None:
        """Only `CacheJournal.follow` creates readers."""
        self._journal = journal
        self._wake = wake
        self._unread: list[Event] | None = None  # None: the next events are all known blocks
        self._hashes: dict[int, int] = {}  # by the blocks' numbers, of the changes that were taken

    def add(self, event: Event) -> None:
        """Add an unread event. The journal calls this while it holds its lock."""
        if self._unread is None:
            return
        if not self._unread:
            self._wake()
        self._unread.append(event)
        if len(self._unread) > MAX_UNREAD:
            self._unread = None

    def take(self) -> tuple[bool, Sequence[Change]]:
        """Take the unread changes.

        Returns:
            False and the changes since the last call. The first time, and after too many were left unread: True and all
            known blocks, parents first.
        """
        everything, events = self.take_events()
        if everything:
            self._hashes.clear()
        return everything, [self._change(event) for event in events]

    def take_events(self) -> tuple[bool, Sequence[Event]]:
        """The same as events, for `CacheJournal.copy`. A reader takes either the one or the other."""
        with self._journal.lock:
            everything = self._unread is None
            events = self._journal.known() if self._unread is None else self._unread
            self._unread = []
            return everything, events

    def _change(self, event: Event) -> Change:
        if isinstance(event, int):
            return BlockRemoved(self._hashes.pop(event))
        block, (parent, tokens) = event
        before = self._hashes.get(parent)
        self._hashes[block] = _hash(before or 0, tokens)
        return BlockStored(self._hashes[block], before, tokens)

    def restart(self) -> None:
        """Let the next events be all known blocks. The journal calls this while it holds its lock."""
        self._unread = None
        self._wake()

    def close(self) -> None:
        """Stop following the journal."""
        self._journal.unfollow(self)


class CacheJournal:
    """The journal of one prefix tree.

    Attributes:
        lock: held while the journal changes.
        keys: the known blocks. The writing thread may look without the lock.
    """

    def __init__(self) -> None:
        """Create a journal without known blocks and readers."""
        self.lock = threading.Lock()
        self.keys: dict[int, BlockKey] = {}
        self._readers: set[JournalReader] = set()

    def stored(self, block: int, key: BlockKey) -> None:
        """Record that the prefix tree has the block with this number."""
        with self.lock:
            self.keys[block] = key
            for reader in self._readers:
                reader.add((block, key))

    def removed(self, block: int) -> BlockKey:
        """Record that the prefix tree has evicted the block with this number; its key."""
        with self.lock:
            key = self.keys.pop(block)
            for reader in self._readers:
                reader.add(block)
            return key

    def copy(self, everything: bool, events: Sequence[Event]) -> None:
        """Record what `JournalReader.take_events` of another journal has returned; then both know the same blocks."""
        if everything:
            with self.lock:
                self.keys.clear()
                self.keys.update(event for event in events if not isinstance(event, int))
                for reader in self._readers:
                    reader.restart()
            return
        for event in events:
            if isinstance(event, int):
                self.removed(event)
            else:
                self.stored(*event)

    def follow(self, wake: Callable[[], object]) -> JournalReader:
        """Create a reader. ``wake`` is called on the step thread when there are unread changes again."""
        reader = JournalReader(self, wake)
        with self.lock:
            self._readers.add(reader)
        return reader

    def unfollow(self, reader: JournalReader) -> None:
        """Send ``reader`` no further changes."""
        with self.lock:
            self._readers.discard(reader)

    def known(self) -> list[Event]:
        """Return all known blocks. The caller holds the lock.

        Parents come first: a block becomes known after its parent, and is evicted before it.
        """
        return list(self.keys.items())


def _hash(parent: int, tokens: tuple[int, ...]) -> int:
    """Return a positive 63-bit hash. A parent of 0 stands for no parent."""
    data = struct.pack(f"<q{len(tokens)}I", parent, *tokens)
    return (int.from_bytes(blake2b(data, digest_size=8).digest(), "little") >> 1) or 1
