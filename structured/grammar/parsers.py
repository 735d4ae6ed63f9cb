"""``GrammarParsers``: the parsers of one grammar, and their renewal.

llguidance builds its lexer's states on demand, and all copies of a parser share them. It never frees any. Beyond a limit
the lexer is dead, and every copy with it: some then report an error, others only answer that no token is legal. Nothing
tells the number of states. So a parser's answer counts only if the lexer is alive afterwards. If it is dead, a new
lexer is built from the grammar, and the outputs move to it one by one: each replays its tokens and asks again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from math import prod

from llguidance import LLMatcher

from draftline.structured.grammar.limits import GrammarLimits

logger = logging.getLogger(__name__)

_SLOW_BUILD_S = 0.005
"""A build that takes longer holds up the steps of other requests, so the next one is built beforehand."""

_NEW_LEXER_BYTES = 1 << 20
_STATE_BYTES = 420
"""Memory of a lexer's state: one with 50,000 states takes 20 MiB."""

_MAX_FORCED_REPEATS = 4096
"""The product of the two largest least counts in a grammar. Most long forced text is a repetition, perhaps a nested one."""


class ParserGeneration:
    """Parsers that share one lexer's states."""

    def __init__(self, root: LLMatcher, first_token: int | None) -> None:
        """No text has used the lexer yet.

        Args:
            root: at the beginning of a text; it stays there.
            first_token: a token that a text can begin with; None if there is none.
        """
        self._root = root
        self._first_token = first_token
        self._probe = root.deep_copy()

    def parser(self) -> LLMatcher:
        """A new parser at the beginning of a text."""
        return self._root.deep_copy()

    @property
    def error(self) -> str | None:
        """Why the lexer is dead; None while it is alive.

        Only consuming a token reports it for sure: other calls of a parser with a dead lexer return as if all were well.
        """
        if self._first_token is None or (self._probe.consume_token(self._first_token) and self._probe.rollback(1)):
            return None
        return self._probe.get_error()


class GrammarParsers:
    """The parsers of one grammar. Any thread may begin a text; the thread of the steps alone replaces generations.

    Attributes:
        limits: those of every generation.
        current: the generation of new texts.
        generations: how many generations there have been.
        forces: whether parsers may be asked for forced text. Long forced text uses up a lexer's states at once.
    """

    def __init__(
        self, build: Callable[[], ParserGeneration], grammar: str, limits: GrammarLimits, background: Executor
    ) -> None:
        """Build the first generation.

        Args:
            build: builds a generation.
            grammar: the grammar.
            limits: those that ``build`` uses.
            background: builds generations before they are needed.

        Raises:
            InvalidConstraintError: the grammar is malformed, matches nothing, or is too large.
        """
        self.limits = limits
        self.generations = 1
        repeats = sorted(int(count) for count in re.findall(r"\{(\d{1,9})", grammar))
        self.forces = prod(repeats[-2:]) <= _MAX_FORCED_REPEATS
        self._build = build
        self._background = background
        self._next: Future[ParserGeneration] | None = None
        started = time.perf_counter()
        self.current = build()
        self._builds_slowly = time.perf_counter() - started > _SLOW_BUILD_S

    @property
    def nbytes(self) -> int:
        """An estimate. A grammar that has used up a lexer will use up the next one; others build few states."""
        states = self.limits.lexer_states if self.generations > 1 else 0
        return _NEW_LEXER_BYTES + _STATE_BYTES * states

    def begin(self) -> ParserGeneration:
        """The generation of a new text. If the next one takes long to build, building it begins now."""
        if self._builds_slowly and self._next is None:
            self._next = self._background.submit(self._build)
        return self.current

    def replace(self, dead: ParserGeneration) -> tuple[ParserGeneration, bool]:
        """The generation to move to from a dead one, and whether no text has used it yet."""
        if self.current is not dead and self.current.error is None:
            return self.current, False
        logger.info("a grammar's lexer is renewed for the %d. time: %s", self.generations, self.current.error)
        self.current = self._build() if self._next is None else self._next.result()
        self._next = None
        self.generations += 1
        return self.begin(), True
