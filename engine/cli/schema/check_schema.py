"""``draftline check-schema``: how a JSON Schema would be enforced, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from draftline.engine.cli.schema.bundle_schema import read_schema
from draftline.structured.compiled import CompileReport
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.vocabulary import ByteVocabulary

_ADVICE: Final = (
    ("may be any value", 'set "additionalProperties": false{closing}; give members and items a type'),
    ("recurses", "write a few levels out without $ref"),
    ("properties in any order", "use --member-order schema"),
    ("unique items", "leave uniqueItems and contains out, or list the items in an enum"),
    ("counts members", "leave minProperties and maxProperties out, or name fewer properties"),
    ("unnamed member", "name the member in properties"),
    ("would have more than", "bound strings and arrays (maxLength, maxItems) less generously, or split the schema"),
    ("takes longer than", "bound strings and arrays (maxLength, maxItems) less generously, or simplify patterns"),
    ("states; at most", "bound strings and arrays (maxLength, maxItems) less generously, or simplify patterns"),
)
"""Parts of the reasons why there is no automaton, and what to change."""


def check_schema(
    file: Annotated[Path, typer.Argument(help="a JSON Schema", metavar="FILE")],
    whitespace: Annotated[
        Literal["compact", "spaced", "free"],
        typer.Option(metavar="compact|spaced|free", help="white space between the tokens of JSON"),
    ] = "free",
    integers: Annotated[
        Literal["plain", "standard"],
        typer.Option(metavar="plain|standard", help="texts of integers: digits alone, or also 1.0 and 1e16"),
    ] = "plain",
    member_order: Annotated[
        Literal["schema", "any"],
        typer.Option(metavar="schema|any", help="order of an object's members: the schema's, or any"),
    ] = "schema",
    close_objects: Annotated[
        bool, typer.Option("--close-objects", help="leave out members that the schema does not mention")
    ] = False,
) -> None:
    """Say what of a JSON Schema is enforced and how, what is refused, and what to change to enforce it on the device.

    No model is needed. The exit code is 1 if a part of the schema is refused.

    **Examples**

    - `draftline check-schema person.json`
    - `draftline check-schema person.json --close-objects`
    """
    source = read_schema(file)
    spec = ConstraintSpec(
        "json_schema",
        source,
        whitespace=whitespace,
        integers=integers,
        member_order=member_order,
        close_objects=close_objects,
    )
    compiler = ConstraintCompiler(_bytes())
    try:
        lines = describe(compiler.compile(spec).report, close_objects)
    except UnsupportedConstraintError as error:
        for violation in sorted(error.violations, key=str):
            typer.echo(f"refused: #{violation.pointer}: {violation.keyword}: {violation.reason}")
        raise typer.Exit(1) from None
    except InvalidConstraintError as error:
        pointer = "#" if str(error).startswith("/") else ""
        typer.echo(f"invalid: {pointer}{error}")
        raise typer.Exit(1) from None
    finally:
        compiler.close()
    for line in lines:
        typer.echo(line)


def describe(report: CompileReport, close_objects: bool) -> list[str]:
    """The lines of a report on a schema that is enforced, with its objects closed or as they are."""
    lines = [f"not enforced: #{each.pointer}: {each.keyword}: {each.reason}" for each in report.unenforced]
    lines += [f"closed: #{pointer}" for pointer in report.closed]
    enforced = "all else" if report.unenforced else "the whole schema"
    if report.no_automaton is None:
        return [*lines, f"enforced: {enforced}, on the device, by an automaton of {report.states} states"]
    lines += [f"enforced: {enforced}, on the host, by a grammar", f"not on the device: {report.no_automaton}"]
    advice = next((advice for part, advice in _ADVICE if part in report.no_automaton), None)
    if advice is None:
        return lines
    closing = "" if close_objects else " or use --close-objects"
    return [*lines, "to change that: " + advice.replace("{closing}", closing)]


def _bytes() -> ByteVocabulary:
    """A vocabulary of single bytes: which part of a schema is enforced how does not depend on the model's."""
    tokens = (*(bytes([byte]) for byte in range(256)), b"")
    return ByteVocabulary(tokens, frozenset([256]), frozenset([256]), lambda text: list(text.encode()))
