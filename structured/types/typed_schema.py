"""``TypedSchema``: a type, the JSON Schema of the texts that it accepts, and their way to values and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from draftline.structured.errors import Violation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TypedSchema(Generic[T]):
    """A type and the JSON Schema of texts that it accepts.

    Attributes:
        type: the type.
        json_schema: a JSON Schema, as JSON text. The type accepts every text of its language.
        unenforced: validators written in Python, which may reject a text all the same. A violation's pointer is the path of
            the field, such as ``items[].price``.
        parse: reads a text of the type; raises ValueError (of the type's library) for a text that the type rejects.
        plain: the JSON of a value, as lists, dicts and scalars; raises ValueError if the type does not read it as that value.
    """

    type: type[T]
    json_schema: str
    unenforced: tuple[Violation, ...] = ()
    parse: Callable[[str], T] = field(repr=False, compare=False, default=NotImplemented)
    plain: Callable[[T], Any] = field(repr=False, compare=False, default=NotImplemented)
