"""Constraints of requests: what a client asked for, compiled, and how far each output has come in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass

from draftline.engine import params
from draftline.engine.errors import InvalidRequestError, Violation
from draftline.structured.compiled import CompiledConstraint, ConstraintProgress
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError

CONSTRAINT_ERRORS = (InvalidConstraintError, UnsupportedConstraintError)
"""What a constraint can be refused with."""


def structured_constraint(asked: params.Constraint) -> ConstraintSpec:
    """A request's constraint as the compiler takes it."""
    sources: dict[str, str | None] = {
        "json_schema": asked.json_schema,
        "regex": asked.regex,
        "choice": None if asked.choice is None else json.dumps(asked.choice),
        "json_object": "" if asked.json_object else None,
        "grammar": asked.grammar,
    }
    [(kind, source)] = [(kind, source) for kind, source in sources.items() if source is not None]
    return ConstraintSpec(
        kind=kind,  # type: ignore[arg-type]
        source=source,
        whitespace=asked.whitespace,
        best_effort=asked.best_effort,
        close_within_budget=asked.close_within_budget,
    )


def refusal(asked: ConstraintSpec, error: Exception) -> InvalidRequestError:
    """What the client is told of a constraint that does not compile: every violation, by field and JSON pointer."""
    return InvalidRequestError(*_violations(asked, error))


def _violations(asked: ConstraintSpec, error: Exception) -> Iterator[Violation]:
    if not isinstance(error, UnsupportedConstraintError):
        yield Violation(f"constraint.{asked.kind}", str(error))
        return
    for violation in error.violations:
        if violation.keyword == "close_within_budget":
            yield Violation("constraint.close_within_budget", violation.reason)
        else:
            yield Violation(f"constraint.{asked.kind}#{violation.pointer}", f"{violation.keyword}: {violation.reason}")


async def compiled(compiler: ConstraintCompiler, asked: params.Constraint) -> CompiledConstraint:
    """A request's constraint, compiled while the event loop goes on.

    Raises:
        InvalidRequestError: it is refused.
    """
    constraint = structured_constraint(asked)
    compiling = asyncio.wrap_future(compiler.submit(constraint))
    compiling.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nobody waits any more
    try:
        # Others may wait for the same.
        return await asyncio.shield(compiling)
    except CONSTRAINT_ERRORS as error:
        raise refusal(constraint, error) from error


@dataclass(slots=True, eq=False)
class OutputConstraint:
    """One output's constraint, and its place in it as far as the host knows.

    Attributes:
        progress: its place, advanced when a step's results are read.
        closes_at: the length before which the text must be complete, or None if it need not be.
        on_host: whether the host writes its masks.
        is_json: whether the text is to be a JSON document.
    """

    progress: ConstraintProgress
    closes_at: int | None
    on_host: bool
    is_json: bool

    @staticmethod
    def of(compiled: CompiledConstraint, asked: params.Constraint, prompt_len: int, max_len: int) -> OutputConstraint:
        """``asked``, compiled, at the beginning of an output of at most ``max_len`` tokens with its prompt."""
        closes = asked.close_within_budget
        progress = compiled.begin(max_len - prompt_len if closes else None)
        is_json = asked.json_object or asked.json_schema is not None
        return OutputConstraint(progress, max_len if closes else None, progress.automaton is None, is_json)
