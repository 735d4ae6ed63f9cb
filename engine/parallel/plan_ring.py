"""``PlanSender`` and ``PlanReceiver``: step plans from rank 0 to the others, through shared memory.

A message is a run of int32 words behind its length. The memory is a ring: the sender waits while a message would
overwrite what a receiver has not read, so a message may be longer than the ring. An eventfd wakes each receiver, which
takes a microsecond to write. Both are files without a name, which the receivers inherit: two engines on one host cannot
meet.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

import numpy as np

_HEADER = 64
"""int64: the words written so far, then the words that each receiver has read; from `_PROGRESS` on, each rank's
progress."""

_PROGRESS = 32

_WORDS = 1 << 20
"""int32 words of the ring, a power of two."""

_RETRY_S = 50e-6


class _Ring:
    """The memory."""

    def __init__(self, descriptor: int) -> None:
        size = _HEADER * 8 + _WORDS * 4
        memory = mmap.mmap(descriptor, size)
        self.counts = np.frombuffer(memory, np.int64, _HEADER)
        self.progress = self.counts[_PROGRESS:]
        self.words = np.frombuffer(memory, np.int32, _WORDS, _HEADER * 8)


class PlanSender:
    """Rank 0's end.

    Attributes:
        memory: the descriptor of the memory.
        wakes: the receivers' eventfds.
        progress: [receivers + 1] int64 zeros, for `Progress`.
    """

    def __init__(self, receivers: int, check: Callable[[], None]) -> None:
        """``check`` is called while a receiver keeps the sender waiting. It raises if that receiver has ended."""
        self.memory = os.memfd_create("draftline-plans")
        os.ftruncate(self.memory, _HEADER * 8 + _WORDS * 4)
        self.wakes = tuple(os.eventfd(0, os.EFD_CLOEXEC) for _ in range(receivers))
        self._ring = _Ring(self.memory)
        self.progress = self._ring.progress[: receivers + 1]
        self._sent = 0
        self._check = check

    def send(self, message: np.ndarray) -> None:
        """Send int32 words to every receiver."""
        words = np.concatenate((np.array([len(message)], np.int32), message))
        while len(words):
            free = _WORDS - (self._sent - int(self._ring.counts[1 : len(self.wakes) + 1].min()))
            first = self._sent % _WORDS
            count = min(free, len(words), _WORDS - first)
            if not count:
                self._check()
                time.sleep(_RETRY_S)
                continue
            self._ring.words[first : first + count] = words[:count]
            self._sent += count
            self._ring.counts[0] = self._sent
            words = words[count:]
            for wake in self.wakes:
                os.eventfd_write(wake, 1)

    def close(self) -> None:
        """Release the descriptors."""
        for descriptor in (self.memory, *self.wakes):
            os.close(descriptor)


class PlanReceiver:
    """Another rank's end.

    Attributes:
        progress: int64, the sender's ``progress``.
    """

    def __init__(self, memory: int, wake: int, index: int) -> None:
        """``index`` is the receiver's, from 0."""
        self._ring = _Ring(memory)
        self.progress = self._ring.progress
        self._wake, self._index = wake, index + 1
        self._read = 0

    def receive(self) -> np.ndarray:
        """The next message, as soon as it comes."""
        return self._take(int(self._take(1)[0]))

    def _take(self, count: int) -> np.ndarray:
        taken = np.empty(count, np.int32)
        done = 0
        while done < count:
            first = self._read % _WORDS
            part = min(int(self._ring.counts[0]) - self._read, count - done, _WORDS - first)
            if not part:
                os.eventfd_read(self._wake)
                continue
            taken[done : done + part] = self._ring.words[first : first + part]
            done += part
            self._read += part
            self._ring.counts[self._index] = self._read
        return taken
