"""From a regular expression to a finite automaton over bytes: built by outlines-core, then pruned and minimised.

outlines-core builds an automaton over any vocabulary. Here the vocabulary is the 256 bytes: `token_automaton` derives
the moves of real tokens from it, much faster than outlines-core would.

outlines-core matches leftmost-first, as in searching: "a|ab" would never match "ab". A "$" behind the expression makes
every match reach the end of the text, which makes the alternatives equal. outlines-core accepts "$" only behind an
expression that cannot match the empty text, so the expression starts with a byte that is not part of the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from outlines_core import Index, Vocabulary

from draftline.structured.automaton.graph import Graph
from draftline.structured.automaton.minimise import equal_states
from draftline.structured.automaton.regex_anchors import without_outer_anchors
from draftline.structured.automaton.rows import Ints, equal_rows
from draftline.structured.errors import InvalidConstraintError

_END = 256
_LEAD = 0x02  # not a word character, so that "\\b" keeps its meaning at the beginning
_BYTES = Vocabulary(_END, {bytes([byte]): [byte] for byte in range(256)})


class AutomatonTooLargeError(Exception):
    """Compiling the automaton would exceed a limit of size, time or memory."""


@dataclass(frozen=True, slots=True)
class ByteAutomaton:
    """A minimal automaton over bytes. State 0 is the initial state; an accepting state can be reached from every state.

    Attributes:
        next: [states + 1, classes] int32. The last row is the dead state, from which no accepting state can be reached.
        byte_class: [256] uint8, the class of each byte, which is its column of ``next``.
        accepting: [states] bool.
    """

    next: Ints
    byte_class: npt.NDArray[np.uint8]
    accepting: npt.NDArray[np.bool_]

    @property
    def states(self) -> int:
        """The number of states, without the dead state."""
        return len(self.accepting)


def compile_bytes(regex: str, max_states: int) -> ByteAutomaton:
    """The automaton of the whole matches of a regular expression, in UTF-8.

    Args:
        regex: in the dialect of Rust's regex crate.
        max_states: the most states before minimisation.

    Raises:
        InvalidConstraintError: it is malformed, has look-around (which automata cannot do), or matches nothing.
        AutomatonTooLargeError: it has too many states.
    """
    index = _index(regex)
    transitions: dict[int, dict[int, int]] = index.get_transitions()
    if len(transitions) > max_states:
        raise AutomatonTooLargeError(f"it has {len(transitions)} states; at most {max_states} are allowed")
    begin = transitions.pop(index.get_initial_state())[_LEAD]
    if not transitions:  # only the empty text matches
        return _minimised(np.ones((2, 256), np.int32), np.array([True, False]))
    counts = np.fromiter(map(len, transitions.values()), np.int64, len(transitions))
    total = int(counts.sum())
    sources = np.repeat(np.fromiter(transitions, np.int64, len(transitions)), counts)
    symbols = np.fromiter(chain.from_iterable(transitions.values()), np.int64, total)
    targets = np.fromiter(chain.from_iterable(map(dict.values, transitions.values())), np.int64, total)
    # Behind the text's end are states without a name of their own.
    inside = symbols != _END
    sources, symbols, targets = sources[inside], symbols[inside], targets[inside]
    names = np.unique(np.concatenate((np.array([begin]), sources, targets)))
    dead = len(names)
    table = np.full((dead + 1, 256), dead, np.int32)
    table[np.searchsorted(names, sources), symbols] = np.searchsorted(names, targets)
    accepting = np.append(np.isin(names, np.fromiter(index.get_final_states(), np.int64)), False)
    # State 0 is the initial one.
    start = int(np.searchsorted(names, begin))
    swapped = np.arange(dead + 1, dtype=np.int32)
    swapped[[0, start]] = start, 0
    return _minimised(swapped[table[swapped]], accepting[swapped])


def _index(regex: str) -> Index:
    try:
        return Index(rf"\x{_LEAD:02x}(?:{without_outer_anchors(regex)})$", _BYTES)
    except InvalidConstraintError:
        raise
    except ValueError as error:
        message = str(error)
    if "Found no transitions" in message:
        raise InvalidConstraintError("no text matches it")
    raise InvalidConstraintError(f"not a supported regular expression: {message}")


def _minimised(table: Ints, accepting: npt.NDArray[np.bool_]) -> ByteAutomaton:
    """Merge equivalent bytes, then equivalent states, and drop dead states.

    Args:
        table: [states + 1, 256] int32, the target of each move; the last state is dead.
        accepting: [states + 1] bool.
    """
    classes, byte_class = _equal_columns(table)
    dead = len(table) - 1
    sources, columns = np.nonzero(classes != dead)
    graph = Graph.of(len(table), sources, classes[sources, columns])
    distance = graph.distances(accepting)
    if not np.isfinite(distance[0]):
        raise InvalidConstraintError("no text matches it")
    # States at different distances are not equivalent: this splits long chains at once.
    block = equal_states(classes, graph, np.where(np.isfinite(distance), distance, -1).astype(np.int64))
    alive = np.isfinite(distance)
    # The blocks in the order of their first states, so that the initial state's comes first; the dead ones last, as one.
    representative = np.unique(block[alive], return_index=True)[1]
    representative = np.sort(np.flatnonzero(alive)[representative])
    number = np.full(block.max() + 1, len(representative), np.int32)
    number[block[representative]] = np.arange(len(representative))
    kept = np.full((len(representative) + 1, classes.shape[1]), len(representative), np.int32)
    kept[:-1] = number[block[classes[representative]]]
    narrow, merged = _equal_columns(kept)
    return ByteAutomaton(narrow, merged[byte_class].astype(np.uint8), accepting[representative])


def _equal_columns(table: Ints) -> tuple[Ints, npt.NDArray[np.int64]]:
    """The distinct columns, and the index among them of each column."""
    first, kind = equal_rows(np.ascontiguousarray(table.T))
    return np.ascontiguousarray(table[:, first]), kind
