"""``ConstraintSpec``: a constraint as a request states it, and the language that it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from draftline.structured.automaton.limits import MAX_PARTS_BYTES
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError, Violation
from draftline.structured.grammar.ebnf import is_ebnf, read_ebnf
from draftline.structured.grammar.ebnf_language import MAX_NODES, ebnf_lark, ebnf_regex
from draftline.structured.grammar.ebnf_loops import with_loops
from draftline.structured.grammar.lark import regex_grammar
from draftline.structured.grammar.lark_rules import rule_error
from draftline.structured.json_schema import (
    DEFAULT_LIMITS,
    SchemaLimits,
    json_object_language,
    json_schema_language,
)
from draftline.structured.json_schema.spelling import IntegerSpelling, PropertyOrder, Whitespace
from draftline.structured.language import Free, Language
from draftline.structured.tags.form import form_language, with_reasoning
from draftline.structured.tags.xgrammar import read_structural_tag

ConstraintKind = Literal["json_schema", "regex", "choice", "json_object", "grammar", "structural_tag", "any"]

MAX_CHOICES = 20_000
"""The largest number of texts of one choice."""

MAX_GRAMMAR_BYTES = 1 << 20
"""The largest regular expression, choice or grammar of a request, in bytes of UTF-8."""


@dataclass(frozen=True, slots=True)
class ReasoningSpec:
    """Reasoning before the constrained text.

    Attributes:
        begin: the mark before it; it may be empty.
        end: the mark behind it.
        limited: whether it has to end within a number of tokens.
        required: whether the text cannot come without it.
    """

    begin: str
    end: str
    limited: bool
    required: bool = True


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A constraint on an output, as a request states it.

    Attributes:
        kind: the form of ``source``.
        source: the schema, regular expression, grammar or structural tag; a choice's texts as a JSON list; "" for any JSON
            object and for any text.
        whitespace: the whitespace allowed between the tokens of JSON.
        best_effort: accept schemas with keywords that cannot be enforced, and report those keywords.
        close_within_budget: complete the text within max_tokens.
        integers: the texts of integers in a JSON Schema.
        member_order: the order of the members of an object in a JSON Schema. In the schema's order every value can still be
            written, languages are more often regular, and names of members can be drafted.
        close_objects: leave out members that a JSON Schema does not mention.
        reasoning: the reasoning before the text; None without one.
    """

    kind: ConstraintKind
    source: str
    whitespace: Whitespace = "free"
    best_effort: bool = False
    close_within_budget: bool = False
    integers: IntegerSpelling = "standard"
    member_order: PropertyOrder = "schema"
    close_objects: bool = False
    reasoning: ReasoningSpec | None = None


def language(constraint: ConstraintSpec) -> Language:
    """The texts that a constraint allows.

    Raises:
        InvalidConstraintError: the source is malformed or too large.
        UnsupportedConstraintError: parts of it cannot be enforced exactly.
    """
    allowed = _LANGUAGES[constraint.kind](constraint)
    reasoning = constraint.reasoning
    if reasoning is None:
        return allowed
    is_json = constraint.kind in JSON_KINDS
    return with_reasoning(allowed, reasoning.begin, reasoning.end, required=reasoning.required, is_json=is_json)


def _json_schema(constraint: ConstraintSpec, limits: SchemaLimits = DEFAULT_LIMITS) -> Language:
    return json_schema_language(
        constraint.source,
        limits=limits,
        whitespace=constraint.whitespace,
        best_effort=constraint.best_effort,
        order=constraint.member_order,
        integers=constraint.integers,
        close_objects=constraint.close_objects,
    )


def _json_object(constraint: ConstraintSpec) -> Language:
    return json_object_language(constraint.whitespace)


def _regex(constraint: ConstraintSpec) -> Language:
    _check_size(constraint)
    return _regular(constraint.source)


def _choice(constraint: ConstraintSpec) -> Language:
    _check_size(constraint)
    choices: list[str] = json.loads(constraint.source)
    if not choices:
        raise InvalidConstraintError("has no choices")
    if len(choices) > MAX_CHOICES:
        raise InvalidConstraintError(f"has {len(choices)} choices; at most {MAX_CHOICES} are allowed")
    return _regular("|".join(_META.sub(r"\\\g<0>", choice) for choice in dict.fromkeys(choices)))


def _grammar(constraint: ConstraintSpec) -> Language:
    _check_size(constraint)
    source = constraint.source
    if is_ebnf(source):
        try:
            rules = with_loops(read_ebnf(source))
        except ValueError as error:
            raise InvalidConstraintError(str(error)) from None
        regex = ebnf_regex(rules, max(MAX_NODES, len(source)))
        if regex is not None:
            return _regular(regex)
        source = ebnf_lark(rules)
    unfit = rule_error(source)
    if unfit is not None:
        raise InvalidConstraintError(unfit)
    return Language(None, source, not_regular="grammars are not compiled to automata")


def _structural_tag(constraint: ConstraintSpec) -> Language:
    room = MAX_PARTS_BYTES

    def inner(kind: ConstraintKind, source: str, close_objects: bool) -> Language:
        nonlocal room
        close = constraint.close_objects or close_objects
        inside = replace(constraint, kind=kind, source=source, close_objects=close, reasoning=None)
        read = _cached_embedded if len(source) < _MAX_CACHED else _embedded
        allowed = read(inside, room >= 0)
        room -= len(allowed.regex or "")
        return allowed

    return form_language(read_structural_tag(constraint.source, inner))


_GRAMMAR_ONLY = replace(DEFAULT_LIMITS, regex_bytes=0)
_TOO_MANY_PARTS = f"the regular expressions inside the structural tag have more than {MAX_PARTS_BYTES} bytes"

_MAX_CACHED = 1 << 14
"""Longer sources are not cached: they would take much memory."""


def _embedded(constraint: ConstraintSpec, regular: bool) -> Language:
    """`language`, for texts inside others: there items cannot be compared.

    Args:
        constraint: the constraint.
        regular: whether the texts around it may have an automaton. If not, schemas need no regular expression.
    """
    if constraint.kind == "json_schema" and not regular:
        allowed = replace(_json_schema(constraint, _GRAMMAR_ONLY), not_regular=_TOO_MANY_PARTS)
    else:
        allowed = language(constraint)
    if allowed.unique is None:
        return allowed
    reason = (
        "inside a structural tag, items can be compared only if they are a few enumerated scalars, and names not at all"
    )
    violations = tuple(Violation(one, one.rpartition("/")[2], reason) for one in allowed.unique.pointers)
    if not constraint.best_effort:
        raise UnsupportedConstraintError(violations)
    return replace(allowed, unique=None, unenforced=(*allowed.unenforced, *violations))


_cached_embedded = lru_cache(maxsize=1024)(_embedded)
"""Many structural tags share tools."""


def _any(constraint: ConstraintSpec) -> Language:
    return form_language(Free())


def _regular(regex: str) -> Language:
    return Language(regex=regex, grammar=regex_grammar(regex))


def _check_size(constraint: ConstraintSpec) -> None:
    size = len(constraint.source.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise InvalidConstraintError(f"has {size} bytes; at most {MAX_GRAMMAR_BYTES} are allowed")


_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
"""The metacharacters of regular expressions."""

_LANGUAGES: dict[ConstraintKind, Callable[[ConstraintSpec], Language]] = {
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "json_object": _json_object,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
    "any": _any,
}

JSON_KINDS: frozenset[ConstraintKind] = frozenset(("json_schema", "json_object"))
"""The kinds whose texts are JSON documents."""
