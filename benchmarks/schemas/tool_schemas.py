"""How the tool schemas of the Berkeley Function-Calling Leaderboard are enforced: how many, by what, and which are refused.

    pip download --no-deps bfcl-eval==2026.3.23 && unzip -d bfcl bfcl_eval-*.whl
    python benchmarks/schemas/tool_schemas.py bfcl/bfcl_eval
    python benchmarks/schemas/tool_schemas.py bfcl/bfcl_eval --tool-format pythonic

Of the package only the data is read. Its types are those of several languages; they are written as JSON Schema's first, as
the leaderboard does for models that are called through an API. Each tool is planned as a chat's only tool, with a call
required. "automaton" is a regular language, which an automaton enforces on the device unless that exceeds a limit of
size; "grammar" is enforced on the host.

The result is a JSON line. Refused tools are listed on standard error, with the place in their schema.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from draftline.engine.bench.provenance import conditions
from draftline.engine.chat.calls import Tool
from draftline.engine.chat.messages import Chat
from draftline.engine.errors import InvalidRequestError
from draftline.engine.protocol import EngineInfo, GenerateRequest
from draftline.engine.request.constraints import structured_constraint
from draftline.engine.tools.formats import FORMATS
from draftline.engine.tools.plan import plan_chat
from draftline.structured.constraint import language
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.tags.lark import tag_grammar

_TYPES: Mapping[str, str | None] = {
    **dict.fromkeys(("dict", "HashMap", "Hashtable"), "object"),
    **dict.fromkeys(("tuple", "list", "Array", "ArrayList", "Queue", "Stack"), "array"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("byte", "short", "long", "Long", "Bigint"), "integer"),
    **dict.fromkeys(("char", "String"), "string"),
    "Boolean": "boolean",
    "any": None,
}
"""Types of the leaderboard's languages, in JSON Schema; None for any value."""


@dataclass(frozen=True, slots=True)
class _Format:
    """What `plan_chat` asks of an engine's info."""

    tool_format: str
    model: str = "a model"
    reasoning: None = None


def read_tools(package: Path) -> list[dict[str, Any]]:
    """The different tools in a package's data."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((package / "data").rglob("*.json")):
        for line in path.read_text().splitlines():
            for tool in _tools_of(line):
                found.setdefault(json.dumps(tool, sort_keys=True), tool)
    return list(found.values())


def _tools_of(line: str) -> Iterator[dict[str, Any]]:
    try:
        row = json.loads(line)
    except ValueError:
        return  # a file of another kind
    if not isinstance(row, dict):
        return
    offered = row.get("function", row)
    for tool in offered if isinstance(offered, list) else [offered]:
        if isinstance(tool, dict) and {"name", "parameters"} <= tool.keys():
            yield tool


def json_schema(schema: Any) -> Any:
    """A schema with JSON Schema's types."""
    if isinstance(schema, list):
        return [json_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    written: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "type" and isinstance(value, str):
            value = _TYPES.get(value, value)
            if value is None:
                continue
        elif name == "properties" and isinstance(value, dict):
            value = {member: json_schema(each) for member, each in value.items()}
        elif name in ("items", "additionalProperties"):
            value = json_schema(value)
        written[name] = value
    return written


def how_enforced(tool: Mapping[str, Any], info: EngineInfo) -> str:
    """What enforces a tool: "automaton" or "grammar".

    Raises:
        InvalidRequestError: nothing does.
        InvalidConstraintError: a schema is no schema.
        UnsupportedConstraintError: a schema has what is not supported.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", tool["name"])[:64]
    asked = Tool(name, tool.get("description", ""), json.dumps(json_schema(tool["parameters"])))
    chat = Chat([{"role": "user", "content": "x"}], tools=[asked], tool_choice="required")
    constraint = plan_chat(GenerateRequest(chat), info, lambda: "").constraint
    assert constraint is not None, "a call is required"
    text = language(structured_constraint(constraint))
    if text.is_regular:
        return "automaton"
    assert text.form is not None, "calls are tags"
    tag_grammar(text.form)
    return "grammar"


def main(argv: list[str] | None = None) -> None:
    """Plan every tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the package's folder")
    parser.add_argument("--tool-format", choices=list(FORMATS), default="hermes", help="(default: hermes)")
    arguments = parser.parse_args(argv)
    info = cast(EngineInfo, _Format(arguments.tool_format))
    tools = read_tools(arguments.package)
    if not tools:
        parser.error(f"{arguments.package}: there are no tools in its folder data")
    begun = conditions()
    started = time.process_time()
    counts = Counter[str]()
    for tool in tools:
        try:
            counts[how_enforced(tool, info)] += 1
        except (InvalidRequestError, InvalidConstraintError, UnsupportedConstraintError) as error:
            counts["refused"] += 1
            print(f"{tool['name']}: {error}", file=sys.stderr)
    seconds = time.process_time() - started
    results = {"tool_format": arguments.tool_format, "tools": len(tools), **counts, "cpu_s": round(seconds, 1)}
    print(json.dumps({**begun, **results}))


if __name__ == "__main__":
    main()
