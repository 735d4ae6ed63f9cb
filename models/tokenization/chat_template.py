"""``ChatTemplate``: a model's Jinja chat template, rendered as HF's tokenizers render it. It makes text, not tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

COMMON_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""Many templates print any role. No model has learned a role that its template does not name, but for these."""


class ChatTemplate:
    """A compiled template. Thread-safe."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """Compile a template.

        Args:
            source: the Jinja template.
            variables: available to it besides the messages: ``bos_token``, ``eos_token``, ….

        Raises:
            ValueError: it is no valid template.
        """
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno} of the chat template: {error.message}") from error
        constants = _ENVIRONMENT.parse(source).find_all(nodes.Const)
        self._roles = COMMON_ROLES | {node.value for node in constants if isinstance(node.value, str)}
        self._variables = dict(variables)

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """The text of a conversation, up to where the assistant's next message begins.

        Args:
            messages: the role and the content of each.

        Raises:
            ValueError: the template refuses the messages (roles that it does not know, or in a wrong order).
        """
        for index, (role, _) in enumerate(messages):
            if role not in self._roles:
                known = ", ".join(sorted(COMMON_ROLES))
                raise ValueError(
                    f"message {index} has the role {role!r}, which the chat template does not know ({known})"
                )
        conversation = [{"role": role, "content": content} for role, content in messages]
        try:
            return self._template.render(
                messages=conversation, tools=None, documents=None, add_generation_prompt=True, **self._variables
            )
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's part for training; here its body is all there is to it."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model has been trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _environment()
