"""Arguments of benchmarks for ``argparse``, their types, and a refusal of those that a mode does not use."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from draftline.engine.bench import numbers
from draftline.engine.bench.contenders.shapes import SHAPES
from draftline.engine.bench.lines import result_lines
from draftline.engine.errors import UsageError
from draftline.engine.options import flag

Value = TypeVar("Value")


def _argument(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """The same reading of a text, whose error ``argparse`` shows."""

    def argument(text: str) -> Value:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return argument


whole_number = _argument(numbers.whole_number)
positive_int = _argument(numbers.positive_int)
positive_ints = _argument(numbers.positive_ints)


def some_names(text: str) -> list[str]:
    """Names with commas between them; one at least, or nothing would run."""
    if not (found := numbers.names(text)):
        raise argparse.ArgumentTypeError(f"{text!r} has no name")
    return found


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add ``--model``, and ``--shape``, which excludes it."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", default="smollm2", help="an HF folder, a .gguf file or a hub id (default: smollm2)")
    source.add_argument("--shape", help=f"random weights in the shape of {', '.join(SHAPES)}, or of a config.json")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--output``, a file that can be appended to."""
    about = "append the JSON lines to this file instead of standard output"
    parser.add_argument("--output", type=_output, help=about)


def _output(text: str) -> Path:
    path = Path(text)
    try:
        with result_lines(path, {}):  # before a long measurement
            return path
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--output: ")) from None


def refuse(parser: argparse.ArgumentParser, arguments: argparse.Namespace, names: Iterable[str], problem: str) -> None:
    """End with an error if one of the arguments is given, which would be ignored. Their defaults are None or False.

    Args:
        parser: the parser of the arguments.
        arguments: the arguments.
        names: the fields of those that this run does not use.
        problem: why, as in "needs --streams".
    """
    for name in names:
        if getattr(arguments, name) not in (None, False):
            parser.error(f"{flag(name)}: {problem}")


def fill(arguments: argparse.Namespace, defaults: Mapping[str, object]) -> None:
    """Give the arguments that are None their defaults, after `refuse`."""
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
