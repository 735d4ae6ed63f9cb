"""``Place``: where in a type a reader is; and the parts of JSON Schemas that readers share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from draftline.structured.errors import Violation
from draftline.structured.json_schema.multiples import InexpressibleNumbersError
from draftline.structured.regular.dfa import TooComplexError
from draftline.structured.regular.ecma_text import whole
from draftline.structured.regular.syntax import NEVER, Node

CoreSchema = Mapping[str, Any]
Fragment = dict[str, Any]
"""A JSON Schema."""

NOTHING: Final[Fragment] = {"not": {}}
"""The schema without values."""

MAX_DEPTH: Final = 64
"""The deepest nesting of arrays and objects that recursive types and ``Any`` write. pydantic reads up to 200."""


class UnwritableError(Exception):
    """There is no text that a type is sure to read as a part of it.

    What contains the part cannot be written either, up to a union with other choices or a field with a default: these leave it
    out.

    Attributes:
        violations: the parts, by their paths.
    """

    def __init__(self, violations: Iterable[Violation]) -> None:
        super().__init__("parts cannot be written")
        self.violations = tuple(violations)


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a type.

    Attributes:
        path: its path as users write it: ``Invoice.items[].price``.
        depth: the number of arrays and objects around it.
        config: pydantic-core's configuration there.
    """

    path: str
    depth: int
    config: Mapping[str, Any]

    def field(self, name: str) -> Place:
        """A member of an object here."""
        return replace(self, path=f"{self.path}.{name}", depth=self.depth + 1)

    def item(self, index: str = "") -> Place:
        """An item of an array here."""
        return replace(self, path=f"{self.path}[{index}]", depth=self.depth + 1)

    def unwritable(self, keyword: str, reason: str) -> UnwritableError:
        """The error of a part here."""
        return UnwritableError([Violation(self.path, keyword, reason)])

    def option(self, schema: CoreSchema, key: str, config_key: str) -> Any:
        """An option of a schema, which may also stand in the configuration."""
        value = schema.get(key)
        return self.config.get(config_key) if value is None else value


class Reader(Protocol):
    """The view that readers of single types have of the whole.

    Attributes:
        definitions: JSON Schemas of named parts.
    """

    definitions: dict[str, Fragment]

    def read(self, schema: CoreSchema, place: Place) -> Fragment:
        """The JSON Schema of a part.

        Raises:
            UnwritableError: it has none.
        """

    def read_key(self, schema: CoreSchema, place: Place) -> Fragment:
        """The JSON Schema of the names of members that become keys of a dict."""

    def resolve(self, schema: CoreSchema) -> CoreSchema:
        """The schema that a chain of references leads to."""

    def refuse(self, place: Place, keyword: str, reason: str) -> Fragment:
        """Record that the guarantee cannot be given."""

    def unenforced(self, place: Place, keyword: str, reason: str) -> None:
        """Record a validator in Python."""


Read = Callable[[Reader, CoreSchema, Place], Fragment]


def text(tree: Node) -> Fragment:
    """The schema of strings in a set."""
    return NOTHING if tree == NEVER else {"type": "string", "pattern": whole(tree)}


def text_or_refusal(reader: Reader, place: Place, keyword: str, tree: Callable[[], Node]) -> Fragment:
    """The schema of strings in a set, unless the set is too complex to be written."""
    try:
        return text(tree())
    except (TooComplexError, InexpressibleNumbersError, OverflowError, ValueError) as error:
        return reader.refuse(place, keyword, str(error))


def name_of(function: Any) -> str:
    """The name of a function of the user's, for errors."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or repr(function)
