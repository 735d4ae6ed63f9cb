"""Types of msgspec, told in pydantic's terms: from ``msgspec.inspect`` to a core schema, which `core` reads.

msgspec accepts what pydantic accepts in strict mode, with few differences; those are made up for here. It is imported only
where a program has imported it already.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

from draftline.structured.types.core.place import CoreSchema

_BOUNDS: Final = ("ge", "gt", "le", "lt", "multiple_of")
_LENGTHS: Final = ("min_length", "max_length")
_MAX_DENOMINATOR: Final = 2**10


def core_schema(info: Any) -> CoreSchema:
    """The core schema of a type, from ``msgspec.inspect.type_info``."""
    converter = _Converter()
    schema = converter.convert(info)
    return {"type": "definitions", "schema": schema, "definitions": list(converter.definitions.values())}


class _Converter:
    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}

    def convert(self, info: Any) -> dict[str, Any]:
        kind = type(info).__name__
        convert = _CONVERTERS.get(kind)
        if convert is not None:
            return convert(self, info)
        plain = _PLAIN.get(kind)
        return {"type": kind} if plain is None else {"type": plain}

    def number(self, info: Any) -> dict[str, Any]:
        schema = {"type": "int" if type(info).__name__ == "IntType" else "float", **_given(info, _BOUNDS)}
        step = schema.get("multiple_of")
        if isinstance(step, float) and Fraction(step).denominator > _MAX_DENOMINATOR:
            # msgspec divides binary floats: of the multiples of 0.1, it rejects 0.3.
            return {"type": f"float that is a multiple of {step}"}
        return schema

    def text(self, info: Any) -> dict[str, Any]:
        schema = {"type": "str", **_given(info, _LENGTHS)}
        return schema if info.pattern is None else {**schema, "pattern": re.compile(info.pattern)}

    def data(self, info: Any) -> dict[str, Any]:
        return {"type": "bytes", "val_json_bytes": "base64", **_given(info, _LENGTHS)}

    def moment(self, info: Any) -> dict[str, Any]:
        schema = {"type": "time" if type(info).__name__ == "TimeType" else "datetime"}
        return schema if info.tz is None else {**schema, "tz_constraint": "aware" if info.tz else "naive"}

    def items(self, info: Any) -> dict[str, Any]:
        kinds = {"SetType": "set", "FrozenSetType": "frozenset"}
        kind = kinds.get(type(info).__name__, "list")
        return {"type": kind, "items_schema": self.convert(info.item_type), **_given(info, _LENGTHS)}

    def variable(self, info: Any) -> dict[str, Any]:
        """A tuple of any length."""
        items = [self.convert(info.item_type)]
        return {"type": "tuple", "items_schema": items, "variadic_item_index": 0, **_given(info, _LENGTHS)}

    def fixed(self, info: Any) -> dict[str, Any]:
        return {"type": "tuple", "items_schema": [self.convert(one) for one in info.item_types]}

    def mapping(self, info: Any) -> dict[str, Any]:
        keys, values = self.convert(info.key_type), self.convert(info.value_type)
        # msgspec reads no bool and no None from the name of a member.
        choices = [key for key in map(_key, keys.get("choices", [keys])) if key["type"] not in ("bool", "none")]
        keys = {"type": "union", "choices": choices}
        return {"type": "dict", "keys_schema": keys, "values_schema": values, **_given(info, _LENGTHS)}

    def union(self, info: Any) -> dict[str, Any]:
        return {"type": "union", "choices": [self.convert(one) for one in info.types]}

    def enum(self, info: Any) -> dict[str, Any]:
        return {"type": "enum", "cls": info.cls, "members": list(info.cls)}

    def custom(self, info: Any) -> dict[str, Any]:
        """A class that msgspec does not know: it reads none of its instances from JSON."""
        return {"type": "is-instance", "cls": info.cls}

    def annotated(self, info: Any) -> dict[str, Any]:
        """A type with a title, a description or examples."""
        return self.convert(info.type)

    def literal(self, info: Any) -> dict[str, Any]:
        return {"type": "literal", "expected": list(info.values)}

    def structure(self, info: Any) -> dict[str, Any]:
        """A Struct, a dataclass, a TypedDict or a named tuple."""
        ref = f"{info.cls.__module__}.{info.cls.__qualname__}:{id(info)}"
        if ref not in self.definitions:
            self.definitions[ref] = {}  # for fields that refer to it
            fields = [self._field(field) for field in info.fields]
            tag_field = getattr(info, "tag_field", None)
            if tag_field is not None:
                tag = {"schema": {"type": "literal", "expected": [info.tag]}, "name": tag_field}
                fields.insert(0, tag)
            if getattr(info, "array_like", False) or type(info).__name__ == "NamedTupleType":
                inner: dict[str, Any] = {"type": "named-tuple", "cls": info.cls, "fields": fields}
            else:
                inner = {"type": "model-fields", "fields": {one["name"]: one for one in fields}}
            post_init = [name for name in _HOOKS if hasattr(info.cls, name)]
            validated = [one.name for one in getattr(info.cls, "__attrs_attrs__", ()) if one.validator is not None]
            post_init.extend(f"{name}'s validator" for name in validated)
            self.definitions[ref] = {
                "type": "dataclass",
                "cls": info.cls,
                "schema": inner,
                "post_init": post_init,
                "ref": ref,
            }
        return {"type": "definition-ref", "schema_ref": ref}

    def _field(self, field: Any) -> dict[str, Any]:
        schema = self.convert(field.type)
        name = field.encode_name
        return {"name": name, "schema": schema if field.required else {"type": "default", "schema": schema}}


def _key(schema: dict[str, Any]) -> dict[str, Any]:
    """A type of keys. msgspec reads the integers of an Enum or a Literal from their digits."""
    if schema["type"] not in ("enum", "literal"):
        return schema
    values = [getattr(one, "value", one) for one in schema.get("members") or schema["expected"]]
    names = [str(value) for value in values if value is not None]
    return {"type": "literal", "expected": names} if names else {"type": "none"}


_HOOKS: Final = ("__post_init__", "__attrs_pre_init__", "__attrs_post_init__")
"""Python code of Structs, dataclasses and classes of attrs that may reject values."""


def _given(info: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The constraints that a type has."""
    return {name: value for name in names if (value := getattr(info, name)) is not None}


_CONVERTERS: Final[dict[str, Callable[[_Converter, Any], dict[str, Any]]]] = {
    "IntType": _Converter.number,
    "FloatType": _Converter.number,
    "StrType": _Converter.text,
    "BytesType": _Converter.data,
    "ByteArrayType": _Converter.data,
    "MemoryViewType": _Converter.data,
    "DateTimeType": _Converter.moment,
    "TimeType": _Converter.moment,
    "ListType": _Converter.items,
    "CollectionType": _Converter.items,
    "VarTupleType": _Converter.variable,
    "SetType": _Converter.items,
    "FrozenSetType": _Converter.items,
    "TupleType": _Converter.fixed,
    "DictType": _Converter.mapping,
    "MappingType": _Converter.mapping,
    "UnionType": _Converter.union,
    "EnumType": _Converter.enum,
    "LiteralType": _Converter.literal,
    "CustomType": _Converter.custom,
    "Metadata": _Converter.annotated,
    "StructType": _Converter.structure,
    "DataclassType": _Converter.structure,
    "TypedDictType": _Converter.structure,
    "NamedTupleType": _Converter.structure,
}
_PLAIN: Final = {
    "AnyType": "any",
    "NoneType": "none",
    "BoolType": "bool",
    "DateType": "date",
    "TimeDeltaType": "timedelta",
    "UUIDType": "uuid",
    "DecimalType": "decimal",
}
"""Types without constraints. Those that are in neither table are refused by their name."""
