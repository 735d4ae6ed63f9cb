"""The command line's errors: one line on standard error, and an exit code. Its streams."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import typer

from draftline.engine.errors import DraftlineError, UsageError
from draftline.engine.process.log_format import ERROR_PREFIX
from draftline.models.errors import ModelLoadError


def print_error(message: str) -> None:
    """Print an error on standard error, in the form of all errors of the command line."""
    typer.echo(f"{ERROR_PREFIX}{message}", err=True)


def prepare_streams() -> None:
    """Make the standard streams usable, before a process of the command line opens anything.

    A process may start without them (``>&-``). The next file or socket that it opens would take the place of standard
    output. So an empty file does: standard output then cannot be written, and messages on standard error vanish.

    Prompts, outputs and help are UTF-8 in every locale, as all files are.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)  # the lowest number that is free: this one
            os.set_inheritable(number, True)
    sys.stdout = sys.stdout or _closed(1)
    sys.stderr = sys.stderr or _closed(2)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream.writable() else "surrogateescape")


def _closed(number: int) -> TextIO:
    return open(number, "w", buffering=1, encoding="utf-8", closefd=False)


def standard_input() -> TextIO:
    """Standard input as text. Bytes that are not UTF-8 become surrogates: requests name the first one.

    Raises:
        UsageError: it is closed, as by ``<&-``.
    """
    if sys.stdin is None:
        raise UsageError("there is no standard input: it is closed")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin


@contextmanager
def writable_output() -> Iterator[None]:
    """Send standard output to nowhere from the moment when it cannot be written: closed by its reader, or full."""
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def reported_errors() -> Iterator[None]:
    """Print expected errors as one line, and exit: with 2 after wrong usage, with 1 after other errors."""
    try:
        yield
    except UsageError as error:
        print_error(str(error))
        raise typer.Exit(2) from error
    except (DraftlineError, ModelLoadError) as error:
        print_error(str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error
