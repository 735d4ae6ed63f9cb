"""The moves over bytes of a regular expression, as outlines-core finds them.

outlines-core builds an automaton over any vocabulary. Here the vocabulary is the 256 bytes: `token_automaton` derives
the moves of real tokens from it, much faster than outlines-core would.

outlines-core matches leftmost-first, as in searching: "a|ab" would never match "ab". A "$" behind the expression makes
every match reach the end of the text, which makes the alternatives equal. outlines-core accepts "$" only behind an
expression that cannot match the empty text, so the expression starts with a byte that is not part of the text.

Not here: numpy, which takes a fresh worker as long to import as all this takes for most expressions.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import chain

from outlines_core import Index, Vocabulary

from draftline.structured.automaton.limits import AutomatonTooLargeError
from draftline.structured.automaton.regex_anchors import without_outer_anchors
from draftline.structured.errors import InvalidConstraintError

END = 256
_LEAD = 0x02  # not a word character, so that "\\b" keeps its meaning at the beginning
_BYTES = Vocabulary(END, {bytes([byte]): [byte] for byte in range(256)})


@dataclass(frozen=True, slots=True)
class ByteMoves:
    """An automaton over bytes, as lists. Its states have any names; some may be dead or equivalent.

    Attributes:
        begin: the initial state.
        sources: [n] the states that have moves.
        counts: [n] how many moves each has.
        symbols: [sum of counts] the byte of each move, in the order of ``sources``; `END` at the end of the text.
        targets: [sum of counts] the state that it leads to.
        final: accepting states.
    """

    begin: int
    sources: array[int]
    counts: array[int]
    symbols: array[int]
    targets: array[int]
    final: array[int]


def byte_moves(regex: str, max_states: int) -> ByteMoves:
    """The automaton of the whole matches of a regular expression, in UTF-8.

    Args:
        regex: in the dialect of Rust's regex crate.
        max_states: the most states.

    Raises:
        InvalidConstraintError: it is malformed, has look-around (which automata cannot do), or matches nothing.
        AutomatonTooLargeError: it has too many states.
    """
    index = _index(regex)
    transitions: dict[int, dict[int, int]] = index.get_transitions()
    if len(transitions) > max_states:
        raise AutomatonTooLargeError(f"it has {len(transitions)} states; at most {max_states} are allowed")
    begin = transitions.pop(index.get_initial_state())[_LEAD]
    return ByteMoves(
        begin,
        array("q", transitions),
        array("q", map(len, transitions.values())),
        array("h", chain.from_iterable(transitions.values())),
        array("q", chain.from_iterable(map(dict.values, transitions.values()))),
        array("q", index.get_final_states()),
    )


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
