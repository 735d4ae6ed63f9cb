"""Constraints of requests: their conversion and compilation, and the progress of each output."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from draftline.engine import params
from draftline.engine.errors import EngineStoppedError, FieldViolation, InvalidRequestError, QueueFullError
from draftline.engine.outputs import ConstraintReport
from draftline.engine.protocol import EngineInfo
from draftline.structured.compiled import CompiledConstraint, CompileReport, ConstraintProgress
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec, ReasoningSpec
from draftline.structured.errors import (
    ClosedError,
    InvalidConstraintError,
    JobQueueFullError,
    UnsupportedConstraintError,
)

_COMPILE_RETRY_S = 1.0
"""Delay in seconds after which a client should send a constraint again that there was no room for."""

_SCHEMA_OPTIONS = ("best_effort", "integers", "member_order", "close_objects")
"""The options of a constraint about JSON Schemas."""

_JSON_OPTIONS = ("whitespace", *_SCHEMA_OPTIONS)
"""The options of a constraint about JSON."""

_IDLE_OPTIONS: Mapping[str | None, Sequence[str]] = {
    "json_schema": (),
    "structural_tag": (),  # tools have made one of any constraint by now: the options are those of their arguments, too
    "json_object": _SCHEMA_OPTIONS,
}
"""By kind, the options without effect; for other kinds those about JSON."""


def structured_constraint(asked: params.Constraint) -> ConstraintSpec:
    """Convert a request's constraint to the compiler's type.

    Raises:
        InvalidRequestError: an option is set that has no effect on texts of this kind.
    """
    kind, reasoning = asked.kind, asked.reasoning
    idle, unset = _IDLE_OPTIONS.get(kind, _JSON_OPTIONS), params.Constraint.model_fields
    if wrong := [name for name in idle if getattr(asked, name) != unset[name].default]:
        problem = f"without effect where {kind or 'only reasoning'} is set: {', '.join(wrong)}"
        raise InvalidRequestError(*(FieldViolation(f"constraint.{name}", problem) for name in wrong))
    source = "" if kind is None or kind == "json_object" else getattr(asked, kind)
    return ConstraintSpec(
        # Without a kind there is reasoning, and any text behind it.
        kind=kind or "any",  # type: ignore[arg-type]
        source=source if isinstance(source, str) else json.dumps(source),
        whitespace=asked.whitespace,
        best_effort=asked.best_effort,
        close_within_budget=asked.close_within_budget,
        integers=asked.integers,
        member_order=asked.member_order,
        close_objects=asked.close_objects,
        reasoning=None
        if reasoning is None
        else ReasoningSpec(reasoning.begin, reasoning.end, reasoning.max_tokens is not None, reasoning.required),
    )


@contextmanager
def constraint_errors(asked: ConstraintSpec) -> Iterator[None]:
    """Raise the compiler's errors as those of the client's request, with every violation's field and JSON pointer."""
    try:
        yield
    except (InvalidConstraintError, UnsupportedConstraintError) as error:
        raise InvalidRequestError(*_violations(asked, error)) from error
    except JobQueueFullError as error:
        raise QueueFullError(str(error), _COMPILE_RETRY_S) from error
    except ClosedError as error:
        raise EngineStoppedError("the engine stopped before the constraint was compiled") from error


def _violations(asked: ConstraintSpec, error: Exception) -> Iterator[FieldViolation]:
    if not isinstance(error, UnsupportedConstraintError):
        # An error inside a schema begins with its JSON pointer.
        pointer, message = re.fullmatch(r"(?s)(/\S*(?=: ))?(?:: )?(.*)", str(error)).groups()  # type: ignore[union-attr]
        in_schema = asked.kind in ("json_schema", "structural_tag") and pointer is not None
        field = f"constraint.{asked.kind}"
        yield FieldViolation(f"{field}#{pointer}", message) if in_schema else FieldViolation(field, str(error))
        return
    for violation in error.violations:
        if violation.keyword == "close_within_budget":
            yield FieldViolation("constraint.close_within_budget", violation.reason)
        else:
            yield FieldViolation(
                f"constraint.{asked.kind}#{violation.pointer}", f"{violation.keyword}: {violation.reason}"
            )


def check_enforced(asked: params.Constraint, info: EngineInfo) -> None:
    """Raise InvalidRequestError if an engine accepts drafts that a constraint does not allow."""
    if info.synthetic_acceptance is not None:
        problem = "cannot be enforced where drafts are accepted by chance (synthetic_acceptance)"
        raise InvalidRequestError(FieldViolation(f"constraint.{asked.kind or 'reasoning'}", problem))


async def compile_constraint(compiler: ConstraintCompiler, asked: params.Constraint, caller: str) -> CompiledConstraint:
    """Compile a request's constraint without blocking the event loop.

    Cancelling it ends the compilation, unless others wait for it.

    Args:
        compiler: compiles it.
        asked: the constraint as the request has it.
        caller: whose it is: callers take turns.

    Raises:
        InvalidRequestError: the compiler rejects the constraint.
        QueueFullError: too many constraints wait.
        EngineStoppedError: the engine is closed, or was closed meanwhile.
    """
    constraint = structured_constraint(asked)
    with constraint_errors(constraint):
        return await asyncio.wrap_future(compiler.submit(constraint, caller))


async def compile_whole(compiler: ConstraintCompiler, asked: params.Constraint, caller: str = "") -> ConstraintReport:
    """Compile all of a constraint without blocking the event loop.

    Arguments and errors are those of `compile_constraint`.
    """
    constraint = structured_constraint(asked)
    with constraint_errors(constraint):
        compiled = await asyncio.wrap_future(compiler.submit(constraint, caller))
        # Others wait for it too, so it must not be cancelled.
        whole = await asyncio.shield(asyncio.wrap_future(compiled.whole))
    return constraint_report(whole.report)


def compile_blocking(compiler: ConstraintCompiler, asked: params.Constraint) -> CompiledConstraint:
    """`compile_constraint`, for threads."""
    constraint = structured_constraint(asked)
    with constraint_errors(constraint):
        return compiler.compile(constraint)


def compile_whole_blocking(compiler: ConstraintCompiler, asked: params.Constraint) -> ConstraintReport:
    """`compile_whole`, for threads."""
    constraint = structured_constraint(asked)
    with constraint_errors(constraint):
        return constraint_report(compiler.compile(constraint).whole.result().report)


def constraint_report(report: CompileReport) -> ConstraintReport:
    """A compiler's report, for the constraint's author."""
    return ConstraintReport(
        backend=report.backend,
        runs_on=report.runs_on,
        states=report.states,
        token_classes=report.classes,
        token_masks=report.masks,
        compile_s=report.compile_s,
        unenforced=tuple(violation.pointer for violation in report.unenforced),
        no_automaton=report.no_automaton or "",
        closed=report.closed,
    )


@dataclass(slots=True, eq=False)
class OutputConstraint:
    """One output's constraint, and the output's progress in it as far as the host knows.

    Attributes:
        progress: the progress, advanced when a step's results are read.
        closes_at: the sequence length before which the text must be complete; None without such a limit.
        reasoning_ends_at: the sequence length before which the reasoning must have ended; None without such a limit.
        on_host: whether the host writes the output's masks; otherwise the device walks the automaton.
        unenforced: JSON pointers of what the constraint asks for and does not enforce.
        marking: the text of the special tokens that write marks.
        fault: an error of the progress, which ends the output; None while there is none.
    """

    progress: ConstraintProgress
    closes_at: int | None
    reasoning_ends_at: int | None
    on_host: bool
    unenforced: tuple[str, ...]
    marking: Mapping[int, bytes]
    fault: Exception | None = None

    def forced(self, max_drafts: int) -> tuple[int, ...]:
        """Up to ``max_drafts`` drafts of the text that the constraint forces next. An error becomes the `fault`."""
        try:
            return self.progress.forced(max_drafts) if self.fault is None else ()
        except Exception as error:  # noqa: BLE001 - it ends this output only
            self.fault = error
            return ()

    @staticmethod
    def of(compiled: CompiledConstraint, asked: params.Constraint, prompt_len: int, max_len: int) -> OutputConstraint:
        """Begin an output.

        Args:
            compiled: the compiled constraint.
            asked: the constraint as the request has it.
            prompt_len: the prompt's tokens.
            max_len: maximum tokens of prompt and output.
        """
        closes_at = max_len if asked.close_within_budget else None
        limit = None if asked.reasoning is None else asked.reasoning.max_tokens
        reasoning_ends_at = None if limit is None else prompt_len + limit
        progress = compiled.begin(None if closes_at is None else max_len - prompt_len, limit)
        if closes_at is not None and reasoning_ends_at is not None and progress.tables is not None:
            # What follows the reasoning needs its share of the budget.
            reasoning_ends_at = min(reasoning_ends_at, closes_at - progress.tables.automaton.late_distance)
        return OutputConstraint(
            progress,
            closes_at,
            reasoning_ends_at,
            on_host=progress.tables is None,
            unenforced=tuple(violation.pointer for violation in compiled.report.unenforced),
            marking=compiled.marking,
        )
