"""Errors of constraints. Free of protobuf: the server maps them to field violations."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One part of a constraint that cannot be enforced exactly.

    Attributes:
        pointer: its place, as a JSON pointer into the schema ("" is the root).
        keyword: the schema keyword, such as "uniqueItems".
        reason: the reason, as one sentence for the author of the constraint.
    """

    pointer: str
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pointer or '(root)'}: {self.keyword}: {self.reason}"


class InvalidConstraintError(ValueError):
    """The constraint is malformed or over a limit. The message says what is wrong, and where."""


class UnsupportedConstraintError(ValueError):
    """The constraint is well-formed, but parts of it cannot be enforced exactly.

    Attributes:
        violations: all such parts, not only the first.
    """

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations: tuple[Violation, ...] = tuple(violations)
        super().__init__("; ".join(str(violation) for violation in self.violations))

    def __reduce__(self) -> tuple[type["UnsupportedConstraintError"], tuple[tuple[Violation, ...]]]:
        """For pickle, which rebuilds an exception from its arguments."""
        return type(self), (self.violations,)


class ClosedError(RuntimeError):
    """The compiler, or its queue or processes, were closed before the work was done."""


class JobQueueFullError(RuntimeError):
    """Too many jobs wait. The message says which, and the limit."""
