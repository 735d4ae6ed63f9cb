"""``CoreReader``: reads a core schema, part by part, and keeps its definitions and what cannot be guaranteed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError, Violation
from draftline.structured.json_schema import json_schema_language
from draftline.structured.regular import rust
from draftline.structured.regular.ecma_text import ecma_text
from draftline.structured.regular.pattern_reader import UntranslatablePatternError
from draftline.structured.types.core import (
    chains,
    collections,
    constants,
    functions,
    numbers,
    objects,
    strings,
    temporal,
    unions,
)
from draftline.structured.types.core.hashing import unhashable
from draftline.structured.types.core.place import (
    MAX_DEPTH,
    NOTHING,
    CoreSchema,
    Fragment,
    Place,
    Read,
    Reader,
    UnwritableError,
    name_of,
)
from draftline.structured.types.core.references import leads_to_itself


class CoreReader:
    """Reads the parts of one type.

    Args:
        max_nesting: the levels of arrays and objects, from its first place on, within which a recursive type is written.

    Attributes:
        definitions: JSON Schemas of named parts, for ``$defs``.
        refused: guarantees that cannot be given, each once.
        python: validators in Python.
        ends: whether the deepest nesting ends a recursive type.
    """

    def __init__(self, max_nesting: int = MAX_DEPTH) -> None:
        self.definitions: dict[str, Fragment] = {}
        self.refused: dict[Violation, None] = {}
        self.python: dict[tuple[str, str], Violation] = {}
        self._schemas: dict[str, CoreSchema] = {}
        self._names: dict[str, str] = {}
        self._recursive: dict[str, bool] = {}
        self._unwritable: dict[str, tuple[Violation, ...]] = {}
        self._first: dict[str, Place] = {}
        self._deep: set[str] = set()  # named parts whose depth makes a difference
        self._at_any_depth: dict[tuple[int, str], tuple[CoreSchema, Fragment]] = {}
        self._counts_depth = False  # whether what is being read has a recursive part or any value in it
        self._max_nesting = max_nesting
        self.ends = False

    def read(self, schema: CoreSchema, place: Place) -> Fragment:
        """The JSON Schema of a part.

        Raises:
            UnwritableError: it has none.
        """
        kind = schema["type"]
        if kind == "definitions":
            self._schemas.update({one["ref"]: one for one in schema["definitions"]})
            return self.read(schema["schema"], place)
        if kind == "definition-ref":
            return self._reference(schema["schema_ref"], place)
        if schema.get("ref") and schema["ref"] not in self._schemas:
            self._schemas[schema["ref"]] = schema
        read = _READERS.get(kind)
        if read is None:
            return self.refuse(place, kind, "Draftline does not know the JSON that this type reads")
        unknown = schema.keys() - _OPTIONS[kind] if kind in _OPTIONS else set()
        if unknown:
            return self.refuse(place, kind, f"Draftline does not know its option {min(unknown)}")
        return self._class(read, schema, place) if "cls" in schema else read(self, schema, place)

    def read_key(self, schema: CoreSchema, place: Place) -> Fragment:
        """The JSON Schema of the names of members that become keys of a dict."""
        schema = self.resolve(schema)
        kind = schema["type"]
        read = _KEY_READERS.get(kind)
        if read is not None:
            return read(self, schema, place)
        if kind in ("union", "nullable"):
            choices = schema["choices"] if kind == "union" else [schema["schema"]]
            options = [self.read_key(one[0] if isinstance(one, tuple) else one, place) for one in choices]
            return unions.any_of(options) if options else self.refuse(place, kind, "it cannot be the name of a member")
        if kind == "default":
            return self.read_key(schema["schema"], place)
        fragment = self.read(schema, place)
        if kind.startswith("function-") and "schema" in schema and fragment.get("type") != "string":
            return self.read_key(schema["schema"], place)
        if fragment.get("type") != "string":
            return self.refuse(place, kind, "it cannot be the name of a member")
        if part := unhashable(self, schema):
            return self.refuse(place, kind, f"it cannot be a key, because {part} is not hashable")
        return fragment

    def resolve(self, schema: CoreSchema) -> CoreSchema:
        """The schema that a chain of references leads to."""
        while schema["type"] in ("definition-ref", "definitions"):
            if schema["type"] == "definitions":
                self._schemas.update({one["ref"]: one for one in schema["definitions"]})
                schema = schema["schema"]
            else:
                schema = self._schemas[schema["schema_ref"]]
        return schema

    def refuse(self, place: Place, keyword: str, reason: str) -> Fragment:
        """Record that the guarantee cannot be given."""
        self.refused[Violation(place.path, keyword, reason)] = None
        return {}

    def unenforced(self, place: Place, keyword: str, reason: str) -> None:
        """Record a validator in Python."""
        self.python.setdefault((place.path, reason), Violation(place.path, keyword, reason))

    def _class(self, read: Read, schema: CoreSchema, place: Place) -> Fragment:
        """A class. Within a recursive type it is read at each depth: if its depth makes no difference, it is written once."""
        same = (id(schema), place.path)
        if same in self._at_any_depth:
            name = self._name(f"{schema['cls'].__name__}:{place.path}")
            self.definitions.setdefault(name, self._at_any_depth[same][1])
            return {"$ref": f"#/$defs/{name}"}
        outer, self._counts_depth = self._counts_depth, False
        try:
            fragment = read(self, schema, place)
            if fragment.get("type") == "object" and not self._counts_depth:
                self._at_any_depth[same] = (schema, fragment)
        finally:
            self._counts_depth |= outer
        return fragment

    # --- definitions ------------------------------------------------------------------------------------------------

    def _reference(self, ref: str, place: Place) -> Fragment:
        """A named part. One whose depth makes a difference is written once for each depth at which it occurs.

        A recursive one ends at the deepest. A part with such parts, or with any value, differs by its depth as well.
        """
        schema = self._schemas[ref]
        if schema["type"] in ("enum", "literal"):
            return self.read(schema, place)
        first = self._first.setdefault(ref, place)
        if self._is_recursive(ref):
            self._deep.add(ref)
            if place.depth > min(first.depth + self._max_nesting, MAX_DEPTH):
                self._counts_depth = self.ends = True
                return NOTHING
        name = self._name(ref)
        numbered = f"{name}.{place.depth}"
        if ref in self._deep:
            self._counts_depth = True
            name = numbered
        if name in self._unwritable:
            raise UnwritableError(self._unwritable[name])
        if name in self.definitions:
            return {"$ref": f"#/$defs/{name}"}
        self.definitions[name] = {}  # for parts of it that refer to it
        outer, self._counts_depth = self._counts_depth, False
        try:
            # Each depth has the same fields: what is wrong with one of them is said once.
            fragment = self.read(schema, replace(place, path=first.path))
        except UnwritableError as error:
            self.definitions[name] = NOTHING
            self._unwritable[name] = error.violations
            raise
        finally:
            counts_depth = self._counts_depth
            self._counts_depth |= outer
        if counts_depth and name != numbered:
            self._deep.add(ref)
            del self.definitions[name]
            name = numbered
        self.definitions[name] = fragment
        return {"$ref": f"#/$defs/{name}"}

    def any_value(self, place: Place) -> Fragment:
        """Any JSON value, down to the deepest nesting."""
        self._counts_depth = True
        scalars = ["null", "boolean", "number", "string"]
        if place.depth > MAX_DEPTH:
            return {"type": scalars, "format": "double"}
        name = f"Any.{place.depth}"
        if name not in self.definitions:
            self.definitions[name] = {}
            inner = self.any_value(place.item())
            self.definitions[name] = {
                "type": [*scalars, "array", "object"],
                "format": "double",
                "items": inner,
                "additionalProperties": inner,
            }
        return {"$ref": f"#/$defs/{name}"}

    def _name(self, ref: str) -> str:
        """A short name for a definition, which no other has."""
        name = self._names.get(ref)
        if name is None:
            short = re.sub(r"\W", "_", ref.partition(":")[0].rpartition(".")[2]) or "Part"
            taken = set(self._names.values())
            name = short
            number = 1
            while name in taken:
                number += 1
                name = f"{short}_{number}"
            self._names[ref] = name
        return name

    def _is_recursive(self, ref: str) -> bool:
        known = self._recursive.get(ref)
        if known is None:
            known = self._recursive[ref] = leads_to_itself(ref, self._schemas)
        return known


def _read_any(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    del schema
    assert isinstance(reader, CoreReader)
    return reader.any_value(place)


def _through(key: str) -> Read:
    return lambda reader, schema, place: reader.read(schema[key], place)


def _read_json(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """A string that holds JSON of a type, which must be regular."""
    inner = CoreReader()
    if isinstance(reader, CoreReader):
        inner._schemas = reader._schemas
    content = inner.read(schema.get("schema") or {"type": "any"}, place)
    if inner.refused:
        return reader.refuse(place, "Json", next(iter(inner.refused)).reason)
    for violation in inner.python.values():
        reader.unenforced(place, violation.keyword, violation.reason)
    document = json.dumps({**content, "$defs": inner.definitions})
    try:
        language = json_schema_language(document, whitespace="compact", order="schema", integers="plain")
        if language.regex is None:
            return reader.refuse(
                place, "Json", f"JSON within a string must be a regular language; {language.not_regular}"
            )
        return {"type": "string", "pattern": f"^(?:{ecma_text(rust.parse(language.regex))})$"}
    except (UntranslatablePatternError, UnsupportedConstraintError, InvalidConstraintError) as error:
        return reader.refuse(place, "Json", str(error))


def _read_missing(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """A value that may be pydantic's MISSING, which stands for no text."""
    if "schema" not in schema:
        raise place.unwritable("missing-sentinel", "JSON has no value for MISSING")
    return reader.read(schema["schema"], place)


def _read_instance(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    raise place.unwritable("is-instance", f"JSON has no instances of {name_of(schema['cls'])}")


def _impossible(reason: str) -> Read:
    def read(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
        raise place.unwritable(schema["type"], reason)

    return read


_READERS: Final[dict[str, Read]] = {
    "any": _read_any,
    "none": constants.read_none,
    "bool": numbers.read_bool,
    "int": numbers.read_int,
    "float": numbers.read_float,
    "decimal": numbers.read_decimal,
    "fraction": numbers.read_fraction,
    "complex": numbers.read_complex,
    "str": strings.read_str,
    "bytes": strings.read_bytes,
    "url": strings.read_url,
    "multi-host-url": strings.read_url,
    "uuid": strings.read_uuid,
    "date": temporal.read_date,
    "time": temporal.read_time,
    "datetime": temporal.read_datetime,
    "timedelta": temporal.read_timedelta,
    "literal": constants.read_literal,
    "enum": constants.read_enum,
    "list": collections.read_list,
    "deque": collections.read_list,
    "generator": collections.read_list,  # pydantic checks the items of iterables when they are read
    "tuple": collections.read_tuple,
    "set": collections.read_set,
    "frozenset": collections.read_set,
    "dict": collections.read_dict,
    "frozendict": collections.read_dict,
    "ordered-dict": collections.read_dict,
    "counter": collections.read_dict,
    "model": objects.read_model,
    "model-fields": objects.read_model_fields,
    "dataclass": objects.read_dataclass,
    "dataclass-args": objects.read_dataclass_args,
    "typed-dict": objects.read_typed_dict,
    "named-tuple": objects.read_named_tuple,
    "call": objects.read_call,
    "union": unions.read_union,
    "tagged-union": unions.read_tagged_union,
    "nullable": unions.read_nullable,
    "default": _through("schema"),
    "custom-error": _through("schema"),
    "lax-or-strict": _through("strict_schema"),
    "json-or-python": chains.read_json_or_python,
    "chain": chains.read_chain,
    "json": _read_json,
    "function-after": functions.read_after,
    "function-before": functions.read_after,
    "function-wrap": functions.read_after,
    "function-plain": functions.read_plain,
    "missing-sentinel": _read_missing,
    "is-instance": _read_instance,
    "is-subclass": _impossible("JSON has no classes"),
    "callable": _impossible("JSON has no functions"),
}

_KEY_READERS: Final[dict[str, Read]] = {
    "int": numbers.int_key,
    "float": numbers.float_key,
    "bool": lambda reader, schema, place: {"enum": ["true", "false"]},
    "literal": constants.enum_key,
    "enum": constants.enum_key,
    "any": lambda reader, schema, place: {"type": "string"},
}

_COMMON: Final = frozenset(["type", "ref", "metadata", "serialization", "strict"])
_BOUNDS: Final = _COMMON | {"ge", "gt", "le", "lt", "multiple_of"}
_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "int": _BOUNDS,
    "float": _BOUNDS | {"allow_inf_nan"},
    "decimal": _BOUNDS | {"allow_inf_nan", "max_digits", "decimal_places"},
    "fraction": _BOUNDS,
    "str": _COMMON
    | {
        "ascii_only",
        "coerce_numbers_to_str",
        "max_length",
        "min_length",
        "pattern",
        "regex_engine",
        "strip_whitespace",
        "to_lower",
        "to_upper",
    },
    "bytes": _COMMON | {"min_length", "max_length", "val_json_bytes"},
    "date": _BOUNDS | {"now_op", "now_utc_offset"},
    "time": _BOUNDS | {"tz_constraint", "microseconds_precision"},
    "datetime": _BOUNDS | {"now_op", "now_utc_offset", "tz_constraint", "microseconds_precision"},
    "timedelta": _BOUNDS | {"microseconds_precision"},
    "uuid": _COMMON | {"version"},
    "list": _COMMON | {"items_schema", "min_length", "max_length", "fail_fast"},
    "set": _COMMON | {"items_schema", "min_length", "max_length", "fail_fast"},
    "frozenset": _COMMON | {"items_schema", "min_length", "max_length", "fail_fast"},
    "deque": _COMMON | {"items_schema", "min_length", "max_length", "maxlen", "fail_fast"},
    "tuple": _COMMON | {"items_schema", "variadic_item_index", "min_length", "max_length", "fail_fast"},
    "dict": _COMMON | {"keys_schema", "values_schema", "min_length", "max_length", "fail_fast"},
    "url": _COMMON
    | {
        "allowed_schemes",
        "default_host",
        "default_path",
        "default_port",
        "host_required",
        "max_length",
        "preserve_empty_path",
    },
}
"""The options that readers know. An option of a later pydantic is refused: it may forbid what is written."""
