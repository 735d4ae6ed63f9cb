"""The JSON of a type's values, as the library writes it that reads it: the inverse of ``TypedSchema.parse``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python


def plain_by_pydantic(adapter: TypeAdapter[Any]) -> Callable[[Any], Any]:
    """The function that gives the JSON of a value, as lists, dicts and scalars.

    A type may write what it does not read: a secret as asterisks, or a field by another alias. The function raises ValueError
    for such a value. It takes the JSON of a value as well, such as a dict in place of a model.
    """

    def plain(value: Any) -> Any:
        try:
            written = adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings="error")
        except PydanticSerializationError:  # not a value, but perhaps its JSON
            written = to_jsonable_python(value, by_alias=True)
            adapter.validate_json(_text(written))
            return written
        read = adapter.validate_json(_text(written))
        if parts(read) != parts(value):
            raise ValueError(
                f"it is written as {_text(written)}, which is read as another value; give its JSON, as a dict"
            )
        return written

    def parts(value: Any) -> Any:
        """A value as dicts and scalars of Python: classes may compare by identity."""
        try:
            return adapter.dump_python(value, round_trip=True)
        except TypeError:  # a set would hold dicts, which are not hashable
            return value

    return plain


def plain_by_msgspec(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """The same for a type of msgspec's, from its parser."""
    to_builtins = importlib.import_module("msgspec").to_builtins

    def plain(value: Any) -> Any:
        try:
            written = to_builtins(value, str_keys=True)
        except TypeError as error:
            raise ValueError(str(error)) from error
        parse(_text(written))
        return written

    return plain


def _text(written: Any) -> str:
    return json.dumps(written, ensure_ascii=False, allow_nan=False)
