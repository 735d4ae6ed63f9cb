"""How the command line ends where something is wrong: one line on standard error, and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from draftline.engine.errors import DraftlineError, UsageError
from draftline.models.errors import ModelLoadError


def complain(message: str) -> None:
    """Print an error as the command line does."""
    typer.echo(f"draftline: error: {message}", err=True)


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn errors that are raised on purpose into one line and an exit code: 2 for wrong usage, 1 for the rest."""
    try:
        yield
    except UsageError as error:
        complain(str(error))
        raise typer.Exit(2) from error
    except (DraftlineError, ModelLoadError) as error:
        complain(str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error
