"""``Options``: the base of the models that hold options. Each option's default, bounds and meaning stand in its field.

From the fields come the error for a misspelt name, and the table of options in the class's docstring. The command line
builds its ``--help`` from them too.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

_SHOWN_BOUND = 2**31 - 1
"""Bounds from here on come from the width of a field on the wire: no reader needs them."""

_ALIKE = 0.65
"""Names that are as alike as this are taken for misspellings; see `_likeness`."""


class FieldsError(ValueError):
    """Several fields contradict one another. A validator of a whole object raises it."""

    def __init__(self, message: str, *fields: str) -> None:
        """``message`` names the ``fields`` and their values."""
        super().__init__(message)
        self.fields = fields


class Options(BaseModel):
    """Immutable options. An unknown name is an error that names the closest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    foreign: ClassVar[Mapping[str, str]] = {}
    """Names of other engines' options, each with a sentence on its substitute."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """Other engines' names of options, each with the name here."""

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown_names(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.keys() <= cls.model_fields.keys():
            return values
        unknown = [name for name in values if name not in cls.model_fields and name not in cls.aliases]
        if unknown:
            raise ValueError("; ".join(cls._unknown(name) for name in unknown))
        named: dict[str, Any] = {}
        for name, value in values.items():
            own = cls.aliases.get(name, name)
            if own in named:
                raise ValueError(f"{own}: is set twice, once by another name")
            named[own] = value
        return named

    @classmethod
    def _unknown(cls, name: str) -> str:
        explanation = f". {cls.foreign[name]}" if name in cls.foreign else suggestion(name, cls.model_fields)
        return f"{name}: is not an option of {cls.__name__}{explanation}"

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Append the table of fields to the docstring, and shorten the signature, for ``help()``."""
        rows = [f"    {_title(name, field)}\n        {sentence(field)}" for name, field in cls.model_fields.items()]
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Options:", *rows])
        # pydantic's signature has every bound in it.
        cls.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=field.get_default(call_default_factory=True)
                )
                for name, field in cls.model_fields.items()
            ]
        )


def flag(name: str) -> str:
    """The command line's option for a field: ``--max-num-seqs`` for ``max_num_seqs``."""
    return "--" + name.replace("_", "-")


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; did you mean NAME?`` with the closest of ``known``; empty where none is close."""
    closest = max(((_likeness(name, each), each) for each in known), default=(0.0, ""))
    return f"; did you mean {closest[1]}?" if closest[0] >= _ALIKE else ""


def _likeness(name: str, other: str) -> float:
    """How alike two names are, by their letters and, with half the weight, by their words.

    Letters alone would take ``max_completion_tokens`` for ``min_tokens``. Words alone would miss ``modle``.
    """
    import difflib  # needed for errors alone

    words, others = set(name.split("_")), set(other.split("_"))
    return difflib.SequenceMatcher(None, name, other).ratio() + len(words & others) / len(words | others) / 2


def sentence(field: FieldInfo) -> str:
    """A field's description, then its bounds: ``longest output, in tokens (at least 1)``."""
    limits = bounds(field)
    return f"{field.description}" + (f" ({limits})" if limits else "")


def bounds(field: FieldInfo) -> str:
    """The values that a field accepts, in words: ``1 to 4096``, ``above 0``; empty where its type says all."""
    marks = {
        kind: getattr(mark, kind)
        for mark in field.metadata
        for kind in ("ge", "gt", "le", "lt", "multiple_of")
        if hasattr(mark, kind)
    }
    lowest, highest = marks.get("ge"), marks.get("le")
    parts: list[str] = []
    if lowest is not None and highest is not None and _is_shown(lowest) and _is_shown(highest):
        parts.append(f"{number(lowest)} to {number(highest)}")
    else:
        words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        parts += [f"{word} {number(marks[kind])}" for kind, word in words.items() if _is_shown(marks.get(kind))]
    if "multiple_of" in marks:
        parts.append(f"a multiple of {number(marks['multiple_of'])}")
    return ", ".join(parts)


def choices(annotation: object) -> tuple[str, ...]:
    """The values of a ``Literal``; none for other types."""
    annotation = without_none(annotation)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def without_none(annotation: object) -> object:
    """``X`` for ``X | None``; any other annotation as it is."""
    if get_origin(annotation) in (Union, types.UnionType):
        [annotation] = (part for part in get_args(annotation) if part is not types.NoneType)
    return annotation


def number(value: float) -> str:
    """A number as people write it: ``100`` for 100.0."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def has_default(field: FieldInfo) -> bool:
    """Whether a field's default is worth showing. ``None`` and empty collections are explained in the description."""
    return field.default not in (None, (), PydanticUndefined)


def _is_shown(bound: float | None) -> bool:
    return bound is not None and abs(bound) < _SHOWN_BOUND


def _title(name: str, field: FieldInfo) -> str:
    default = f" = {field.default!r}" if has_default(field) else ""
    return f"{name}: {_type_name(field.annotation)}{default}"


def _type_name(annotation: Any) -> str:
    return " | ".join(_type_names(annotation))


def _type_names(annotation: Any) -> Iterator[str]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        for part in arguments:
            yield from _type_names(part)
    elif origin is Annotated:
        yield from _type_names(arguments[0])
    elif origin is Literal:
        yield from map(repr, arguments)
    elif origin is tuple:
        yield f"Sequence[{_type_name(arguments[0])}]"
    elif origin is not None:
        yield f"{origin.__name__}[{', '.join(map(_type_name, arguments))}]"
    else:
        yield "None" if annotation is types.NoneType else annotation.__name__
