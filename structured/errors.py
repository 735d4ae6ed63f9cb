"""What a constraint can be refused for. Deliberately without protobuf: the server maps these to field violations."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing in a constraint that cannot be enforced exactly.

    Attributes:
        pointer: where, as a JSON pointer into the schema ("" is its root).
        keyword: which keyword, such as "uniqueItems".
        reason: why not, as one sentence for the constraint's author.
    """

    pointer: str
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pointer or '(root)'}: {self.keyword}: {self.reason}"


class InvalidConstraintError(ValueError):
    """The constraint is not what it should be: no JSON, no schema, over a limit. The message says what and where."""


class UnsupportedConstraintError(ValueError):
    """The constraint is well-formed, and parts of it cannot be enforced exactly.

    Attributes:
        violations: every such part, never only the first.
    """

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations: tuple[Violation, ...] = tuple(violations)
        super().__init__("; ".join(str(violation) for violation in self.violations))
