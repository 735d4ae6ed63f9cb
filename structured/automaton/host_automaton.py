"""An automaton over bytes that the host walks with tokens: for the outputs that begin before its tables are built.

Tables answer every question of every state at once. Here a question is answered when it is asked, in about a millisecond
for a mask, so an output can begin as soon as the moves over bytes are known. The answers are the same.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from typing_extensions import override

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.token_trie import TokenTrie
from draftline.structured.matcher import MAX_FORCED_BYTES, Matcher, RowByRow, Words, end_mask, packed
from draftline.structured.vocabulary import ByteVocabulary

_MASK_BYTES = 16 << 20
"""Size of the masks that are kept of one automaton."""


class HostAutomaton:
    """An automaton that all outputs of one constraint share.

    Attributes:
        automaton: the automaton. Every byte that it has a move for is a token of the vocabulary (`TokenTrie.is_complete`):
            then tokens reach an accepting state from wherever bytes do.
        vocabulary: the vocabulary.
        end: the mask behind the end of a text.
    """

    def __init__(self, automaton: ByteAutomaton, trie: TokenTrie, vocabulary: ByteVocabulary) -> None:
        """No mask is computed yet. ``trie`` is the vocabulary's."""
        self.automaton = automaton
        self.vocabulary = vocabulary
        self.end = end_mask(vocabulary)
        self._trie = trie
        self._masks: OrderedDict[int, Words] = OrderedDict()  # least recently used first
        self._sizes = np.bincount(automaton.byte_class, minlength=automaton.next.shape[1])

    @property
    def nbytes(self) -> int:
        """The size of the moves, and of as many masks as are kept."""
        return self.automaton.nbytes + _MASK_BYTES

    def mask(self, state: int) -> Words:
        """The tokens that may come next; read-only. One thread at a time asks for masks."""
        words = self._masks.get(state)
        if words is None:
            bits = self._trie.allowed(self.automaton, state)
            if self.automaton.accepting[state]:
                bits[list(self.vocabulary.eos_ids)] = True
            words = self._masks[state] = packed(bits)
            if len(self._masks) * words.nbytes > _MASK_BYTES:
                self._masks.popitem(last=False)
        self._masks.move_to_end(state)
        return words

    def step(self, state: int, token: int) -> int | None:
        """The state behind a token; None if the token is illegal."""
        automaton = self.automaton
        tokens = self.vocabulary.tokens
        text = tokens[token] if 0 <= token < len(tokens) else b""
        if not text:
            return None
        for byte in text:
            state = int(automaton.next[state, automaton.byte_class[byte]])
            if state == automaton.states:
                return None
        return state

    def may_continue(self, state: int) -> bool:
        """Whether a token of text may come next."""
        return bool((self.automaton.next[state] != self.automaton.states).any())

    def forced(self, state: int) -> bytes:
        """The text that every continuation begins with; the first `MAX_FORCED_BYTES` of a longer one."""
        automaton = self.automaton
        text = bytearray()
        while len(text) < MAX_FORCED_BYTES and not automaton.accepting[state]:
            row = automaton.next[state]
            follows = row != automaton.states
            if follows @ self._sizes != 1:
                break
            symbol = int(follows.argmax())
            text.append(int((automaton.byte_class == symbol).argmax()))
            state = int(row[symbol])
        return bytes(text)


class HostAutomatonMatcher(Matcher):
    """The position of one output in an automaton over bytes."""

    failure: str | None = None
    error: str | None = None
    mask_batcher = RowByRow()

    def __init__(self, host: HostAutomaton) -> None:
        """At the beginning of a text."""
        self._host = host
        self._states = [0]
        self._ends = 0  # end-of-sequence tokens taken

    @property
    @override
    def consumed(self) -> int:
        return len(self._states) - 1 + self._ends

    @property
    @override
    def complete(self) -> bool:
        return bool(self._host.automaton.accepting[self._states[-1]])

    @property
    @override
    def finished(self) -> bool:
        return self._ends > 0

    @property
    @override
    def ended(self) -> bool:
        return self.finished or (self.complete and not self._host.may_continue(self._states[-1]))

    @override
    def fill_mask(self, words: Words) -> None:
        words[:] = self._host.end if self._ends else self._host.mask(self._states[-1])

    @override
    def advance(self, token: int) -> bool:
        if token in self._host.vocabulary.eos_ids:
            legal = self.complete
            self._ends += legal
            return legal
        state = None if self._ends else self._host.step(self._states[-1], token)
        if state is None:
            return False
        self._states.append(state)
        return True

    @override
    def rollback(self, count: int) -> None:
        if not 0 <= count <= self.consumed:
            raise ValueError(f"cannot take back {count} tokens of {self.consumed}")
        ends = min(count, self._ends)
        self._ends -= ends
        del self._states[len(self._states) - (count - ends) :]

    @override
    def forced(self) -> bytes:
        return b"" if self._ends else self._host.forced(self._states[-1])
