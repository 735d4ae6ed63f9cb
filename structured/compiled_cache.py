"""``CompiledCache``: compiled constraints that later requests reuse."""

from __future__ import annotations

from collections import OrderedDict

from draftline.structured.compiled import CompiledConstraint
from draftline.structured.constraint import ConstraintSpec

_OBJECT_BYTES = 10 << 10
"""About what the objects of one entry take, apart from the contents of its tables: where a vocabulary is small, most of it."""


class CompiledCache:
    """An LRU cache of compiled constraints, bounded in bytes. Not thread-safe: the caller holds a lock."""

    def __init__(self, max_bytes: int) -> None:
        """An empty cache of at most so many bytes."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[ConstraintSpec, tuple[CompiledConstraint, int]] = OrderedDict()

    def get(self, constraint: ConstraintSpec) -> CompiledConstraint | None:
        """The compiled constraint, now the most recently used; None if it is not cached."""
        found = self._kept.get(constraint)
        if found is None:
            return None
        compiled, _ = found
        self.put(constraint, compiled)  # counted again: it may have grown
        return compiled

    def put(self, constraint: ConstraintSpec, compiled: CompiledConstraint) -> None:
        """Keep a compiled constraint in place of an earlier form, and evict others until all fit."""
        _, before = self._kept.pop(constraint, (None, 0))
        self._bytes -= before
        tags = 0 if compiled.tags is None else compiled.tags.nbytes
        size = compiled.nbytes + tags + 2 * len(constraint.source) + _OBJECT_BYTES
        if size > self._max_bytes:
            return
        self._kept[constraint] = compiled, size
        self._bytes += size
        while self._bytes > self._max_bytes:
            _, (_, gone) = self._kept.popitem(last=False)
            self._bytes -= gone
