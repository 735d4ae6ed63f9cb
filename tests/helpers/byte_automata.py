"""Automata over bytes: of a regular expression, and whether they accept a text."""

from __future__ import annotations

from draftline.structured.automaton.byte_automaton import ByteAutomaton, minimised
from draftline.structured.automaton.byte_moves import byte_moves


def compile_bytes(regex: str, max_states: int) -> ByteAutomaton:
    """The minimal automaton of a regular expression."""
    return minimised(ByteAutomaton.of(byte_moves(regex, max_states)))


def accepts(automaton: ByteAutomaton, text: str) -> bool:
    """Whether an automaton accepts a text."""
    state = 0
    for byte in text.encode():
        state = int(automaton.next[state, automaton.byte_class[byte]])
    return state < automaton.states and bool(automaton.accepting[state])
