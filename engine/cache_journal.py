"""The cache journal: the changes of the prefix tree, for gateways that route requests to where their prefix is cached.

A block is identified by a hash of its tokens and all tokens before it. The same prefix has the same hash on every
server. One thread writes: the step thread, or in a server process whose engine is in another one, the thread that receives
that engine's changes. Readers are on other threads, and hold the lock only for short copies.
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


class JournalReader:
    """Follows the journal, first with all known blocks and then with the changes."""

    def __init__(self, journal: CacheJournal, wake: Callable[[], object]) -> None:
        """Only `CacheJournal.follow` creates readers."""
        self._journal = journal
        self._wake = wake
        self._unread: list[Change] | None = None  # None: the next `take` returns all known blocks

    def add(self, change: Change) -> None:
        """Add an unread change. The journal calls this while it holds its lock."""
        if self._unread is None:
            return
        if not self._unread:
            self._wake()
        self._unread.append(change)
        if len(self._unread) > MAX_UNREAD:
            self._unread = None

    def take(self) -> tuple[bool, Sequence[Change]]:
        """Take the unread changes.

        Returns:
            False and the changes since the last call. The first time, and after too many were left unread: True and all
            known blocks, parents first.
        """
        with self._journal.lock:
            if self._unread is None:
                self._unread = []
                return True, self._journal.known()
            changes, self._unread = self._unread, []
            return False, changes

    def restart(self) -> None:
        """Let the next `take` return all known blocks. The journal calls this while it holds its lock."""
        self._unread = None
        self._wake()

    def close(self) -> None:
        """Stop following the journal."""
        self._journal.unfollow(self)


class CacheJournal:
    """The journal of one prefix tree.

    Attributes:
        lock: held while the journal changes.
    """

    def __init__(self) -> None:
        """Create a journal without known blocks and readers."""
        self.lock = threading.Lock()
        self._hashes: dict[int, int] = {}  # of the known blocks, by the blocks' numbers
        self._known: dict[int, BlockStored] = {}  # by hash
        self._readers: set[JournalReader] = set()

    def stored(self, block: int, parent: int, tokens: tuple[int, ...]) -> None:
        """Record that the prefix tree has a block.

        Args:
            block: the block's number.
            parent: the number of the block before it. If it is not a known block, this is the first of a prefix.
            tokens: the block's tokens.
        """
        with self.lock:
            before = self._hashes.get(parent)
            self._hashes[block] = _hash(before or 0, tokens)
            self._publish(BlockStored(self._hashes[block], before, tokens))

    def removed(self, block: int) -> None:
        """Record that the prefix tree has evicted the block with this number."""
        with self.lock:
            self._publish(BlockRemoved(self._hashes.pop(block)))

    def copy(self, everything: bool, changes: Sequence[Change]) -> None:
        """Record what `JournalReader.take` of another journal has returned: this one has the same known blocks then."""
        with self.lock:
            if everything:
                self._known.clear()
            for change in changes:
                self._publish(change)
            if everything:
                for reader in self._readers:
                    reader.restart()

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

    def known(self) -> list[BlockStored]:
        """Return all known blocks. The caller holds the lock.

        Parents come first: a block becomes known after its parent, and is evicted before it.
        """
        return list(self._known.values())

    def _publish(self, change: Change) -> None:
        match change:
            case BlockStored():
                self._known[change.block_hash] = change
            case BlockRemoved():
                del self._known[change.block_hash]
        for reader in self._readers:
            reader.add(change)


def _hash(parent: int, tokens: tuple[int, ...]) -> int:
    """Return a positive 63-bit hash. A parent of 0 stands for no parent."""
    data = struct.pack(f"<q{len(tokens)}I", parent, *tokens)
    return (int.from_bytes(blake2b(data, digest_size=8).digest(), "little") >> 1) or 1
