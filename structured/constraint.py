"""``Constraint``: what a request asks for, and the language that this is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from llguidance import LLMatcher

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema import json_object_language, json_schema_language
from draftline.structured.language import Language, Whitespace

Kind = Literal["json_schema", "regex", "choice", "json_object", "grammar"]

MAX_CHOICES = 20_000
"""The most texts of one choice."""

MAX_GRAMMAR_BYTES = 1 << 20
"""The largest regular expression, choice or grammar that a request may bring, in UTF-8."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an output must match.

    Attributes:
        kind: what ``source`` is.
        source: the schema, regular expression or grammar; a choice's texts as a JSON list; "" for any JSON object.
        whitespace: what may stand between the tokens of JSON.
        best_effort: accept schema keywords that cannot be enforced, and report them.
        close_within_budget: finish the text within max_tokens.
    """

    kind: Kind
    source: str
    whitespace: Whitespace = "free"
    best_effort: bool = False
    close_within_budget: bool = False


def language(constraint: Constraint) -> Language:
    """The texts that a constraint allows.

    Raises:
        InvalidConstraintError: the constraint is no such thing, or too large.
        UnsupportedConstraintError: parts of it cannot be enforced exactly.
    """
    return _LANGUAGES[constraint.kind](constraint)


def _json_schema(constraint: Constraint) -> Language:
    # Any order of members is valid. Where the schema's makes the language regular, that is worth more: no value is lost,
    # since JSON's objects have no order, the device enforces it by itself, and names can be drafted.
    return json_schema_language(
        constraint.source, whitespace=constraint.whitespace, best_effort=constraint.best_effort, order="auto"
    )


def _json_object(constraint: Constraint) -> Language:
    return json_object_language(constraint.whitespace)


def _regex(constraint: Constraint) -> Language:
    _check_size(constraint)
    return _regular(constraint.source)


def _choice(constraint: Constraint) -> Language:
    _check_size(constraint)
    choices: list[str] = json.loads(constraint.source)
    if not choices:
        raise InvalidConstraintError("has no choices")
    if len(choices) > MAX_CHOICES:
        raise InvalidConstraintError(f"has {len(choices)} choices, of at most {MAX_CHOICES}")
    return _regular("|".join(_META.sub(r"\\\g<0>", choice) for choice in dict.fromkeys(choices)))


def _grammar(constraint: Constraint) -> Language:
    _check_size(constraint)
    return Language(None, constraint.source, not_regular="a grammar need not be regular")


def _regular(regex: str) -> Language:
    return Language(regex=regex, grammar=regex_grammar(regex))


def regex_grammar(regex: str) -> str:
    """A regular expression as a Lark grammar."""
    grammar: str = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"][0]["lark_grammar"]
    return grammar


def _check_size(constraint: Constraint) -> None:
    size = len(constraint.source.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise InvalidConstraintError(f"has {size} bytes, of at most {MAX_GRAMMAR_BYTES}")


_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
"""What the syntax of regular expressions gives a meaning."""

_LANGUAGES: dict[Kind, Callable[[Constraint], Language]] = {
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "json_object": _json_object,
    "grammar": _grammar,
}

KINDS: tuple[Kind, ...] = tuple(_LANGUAGES)
"""What constraints there are."""
