"""``ChatTemplate``: a model's Jinja chat template, rendered as HF's tokenizers render it. It makes text, not tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftline.models.tokenization.rendering import AS_USUAL, Rendering, RoleError, VariableError

COMMON_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""Many templates print any role. No model has learned a role that its template does not name, but for these."""


class ChatTemplate:
    """A compiled template. Thread-safe.

    Attributes:
        shows_tools: whether it reads the variable ``tools``.
    """

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
        self.shows_tools = "tools" in meta.find_undeclared_variables(_ENVIRONMENT.parse(source))
        self._roles = COMMON_ROLES | {node.value for node in constants if isinstance(node.value, str)}
        self._variables = dict(variables)

    def render(self, messages: Sequence[tuple[str, str]], rendering: Rendering = AS_USUAL) -> str:
        """The text of a conversation, up to where the assistant's next message begins unless ``rendering`` differs.

        Args:
            messages: the role and the content of each.
            rendering: the choices of this conversation.

        Raises:
            RoleError: the template does not know a role.
            VariableError: a variable has the name of what the template gets anyway, or a number that is not finite.
            ValueError: the template refuses the messages (roles in a wrong order).
        """
        taken = rendering.variables.keys() & {*_GIVEN, *self._variables}
        if taken:
            raise VariableError(f"the template's variable {min(taken)!r} cannot be set")
        for name, value in rendering.variables.items():
            if (number := _not_finite(value)) is not None:
                raise VariableError(f"the template's variable {name!r} has {number}, which is no number of JSON")
        for index, (role, _) in enumerate(messages):
            if role not in self._roles:
                known = ", ".join(sorted(COMMON_ROLES))
                raise RoleError(index, f"the chat template does not know {role!r} ({known})")
        conversation = [
            {"role": role, "content": content, **rendering.members.get(index, {})}
            for index, (role, content) in enumerate(messages)
        ]
        new_message = rendering.add_generation_prompt and not rendering.continue_final_message
        try:
            text = self._template.render(
                messages=conversation,
                tools=list(rendering.tools) or None,
                documents=None,
                add_generation_prompt=new_message,
                **self._variables,
                **rendering.variables,
            )
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error
        return _up_to_the_end_of(messages[-1][1], text) if rendering.continue_final_message else text


def by_tools(default: str | None, tool_use: str | None) -> str | None:
    """One template of two: of chats without and with tools."""
    if default is None or tool_use is None:
        return default
    # Jinja drops a template's last line break. The signs in the tags keep the white space beside them.
    first, second = tool_use.removesuffix("\n"), default.removesuffix("\n")
    return f"{{% if tools +%}}{first}{{%+ else +%}}{second}{{%+ endif %}}"


_GIVEN = ("messages", "tools", "documents", "add_generation_prompt")
"""The variables that every template gets."""


def _not_finite(value: object) -> float | None:
    """A number in a JSON value that is not finite; None without one. Parsers make one of ``NaN`` and of ``1e999``."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return next((number for part in parts if (number := _not_finite(part)) is not None), None)


def _up_to_the_end_of(content: str, text: str) -> str:
    """``text`` as far as the last message's ``content``, which a template may have trimmed.

    HF cuts it in the same place.
    """
    trimmed = content.strip()
    start = text.rfind(trimmed) if trimmed else -1
    if start < 0:
        raise ValueError("the last message cannot be continued: the chat template does not show its content as it is")
    with_end = content.lstrip()
    return text[: start + len(with_end if text.startswith(with_end, start) else trimmed)]


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
