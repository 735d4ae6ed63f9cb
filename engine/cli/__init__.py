"""The ``draftline`` command: serve, generate, chat, top, info, demo and train-draft."""

from __future__ import annotations

import os
import sys

import typer

from draftline.engine.cli.chat import chat
from draftline.engine.cli.demo import demo
from draftline.engine.cli.errors import complain
from draftline.engine.cli.generate import generate
from draftline.engine.cli.info import info
from draftline.engine.cli.options import command
from draftline.engine.cli.serve import serve
from draftline.engine.cli.top import top
from draftline.engine.cli.train_draft import train_draft

app = typer.Typer(
    name="draftline",
    help="Streaming inference for language models: a gRPC server, and the same engine on the command line.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for function in (serve, generate, chat, top, info, demo, train_draft):
    app.command()(command(function))


def main() -> None:
    """Run the command line and exit."""
    # gRPC's own log tells of connections that come and go; what matters reaches its callers as errors.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        code = app(args=sys.argv[1:] or ["--help"], standalone_mode=False)
    except typer.TyperException as error:
        complain(f"{error.format_message()} (see draftline --help)")
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
