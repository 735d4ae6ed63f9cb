"""Compilers of constraints for models whose tokens are bytes, all tests' in common."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fake_tokenizer import EOS

from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.compiler import CompilerLimits, ConstraintCompiler
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.job_queue import QueuedJob
from draftline.structured.vocabulary import ByteVocabulary


class CommonCompiler(ConstraintCompiler):
    """All tests' in common: an engine that closes its own leaves it open for the next."""

    def close(self) -> None:
        """Nothing: it ends with the process."""


@functools.cache
def byte_compiler(grammar: GrammarLimits | None = None) -> ConstraintCompiler:
    """Compiles constraints for a vocabulary of all bytes, in which `EOS` ends a text."""
    tokens = tuple(bytes([token]) if token != EOS else b"" for token in range(256))
    ends = frozenset([EOS])
    limits = CompilerLimits(grammar=grammar or GrammarLimits())
    return CommonCompiler(ByteVocabulary(tokens, ends, ends, lambda text: list(text.encode())), limits)


class HostCompiler(CommonCompiler):
    """No tables are ever built: all outputs with an automaton stay on the host."""

    def _do_later(self, work: Callable[[QueuedJob[None]], None]) -> bool:
        return True


@functools.cache
def host_compiler(kind: type[ConstraintCompiler] = HostCompiler) -> ConstraintCompiler:
    """Compiles constraints for the same vocabulary, and waits for no tables."""
    return kind(byte_compiler().vocabulary, CompilerLimits(automaton=AutomatonLimits(awaited_states=0)))
