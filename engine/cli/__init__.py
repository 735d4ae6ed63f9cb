"""The ``draftline`` command: serve, generate, chat, run-batch, bench, top, info, and others."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any

import typer

from draftline import __version__
from draftline.engine.cli import bench
from draftline.engine.cli.errors import prepare_streams, print_error, writable_output
from draftline.engine.cli.late import late_group
from draftline.engine.process.bytecode import keep_compiled_modules

_COMMANDS = {
    "serve": "draftline.engine.cli.serve:serve",
    "generate": "draftline.engine.cli.generate:generate",
    "chat": "draftline.engine.cli.chat:chat",
    "run-batch": "draftline.engine.cli.run_batch:run_batch",
    "top": "draftline.engine.cli.top:top",
    "info": "draftline.engine.cli.info:info",
    "token": "draftline.engine.cli.token:token",
    "check-schema": "draftline.engine.cli.schema.check_schema:check_schema",
    "bundle-schema": "draftline.engine.cli.schema.bundle_schema:bundle_schema",
    "profile": "draftline.engine.cli.bench.profile:profile",
    "demo": "draftline.engine.cli.demo:demo",
    "train-draft": "draftline.engine.cli.train_draft:train_draft",
}

app = typer.Typer(name="draftline", add_completion=False, pretty_exceptions_enable=False, cls=late_group(_COMMANDS))
app.add_typer(bench.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"draftline {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Streaming inference for language models: a gRPC and HTTP server, and the same engine on the command line."""


def _instead(error: typer.TyperException) -> str:
    """A sentence on what to do instead of an option of vLLM's that Draftline does not have; empty for other errors."""
    from draftline.engine.cli.options import CONFIGURATIONS  # imports the options of all commands

    name = str(getattr(error, "option_name", "")).lstrip("-").removeprefix("no-").replace("-", "_")
    instead = next((model.foreign[name] for model in CONFIGURATIONS if name in model.foreign), None)
    return "" if instead is None else f". {instead}"


def _message(error: Any) -> str:
    """Typer's message: with the wrong value, without pydantic's mark, and without options that no help lists.

    Of an option of vLLM's it says what to do instead, and suggests no others.
    """
    if instead := _instead(error):
        return f"No such option: {error.option_name}{instead}"
    if getattr(error, "possibilities", None) and error.ctx is not None:
        hidden = {name for each in error.ctx.command.params if getattr(each, "hidden", False) for name in each.opts}
        error.possibilities = [name for name in error.possibilities if name not in hidden]
    message = str(error.format_message()).replace("Value error, ", "").rstrip(".")
    if message.startswith("Got unexpected extra argument") and error.ctx.params.get("model", "") is None:
        message += ". The model is an option: --model NAME"  # vLLM's command takes it as an argument
    if not hasattr(error.__cause__, "errors"):
        return message
    from draftline.engine.validation import quoted  # imports pydantic, which raised the cause

    value = quoted(error.__cause__.errors()[0]["input"])
    return message if value in message else f"{message}, not {value}"


def _help(error: typer.TyperException) -> str:
    """The command that lists the options of the one that is wrong."""
    names = ["--help"]
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(["draftline", *names])


def main() -> None:
    """Run the command line and exit."""
    prepare_streams()
    keep_compiled_modules()
    # gRPC logs every connection that opens or closes; failures reach its callers as errors.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        code = app(args=sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()  # not at exit, where Python would not report an error in the exit code
    except typer.TyperException as error:
        print_error(f"{_message(error)} (see {_help(error)})")
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        with writable_output():
            raise
        code = 1
        if not isinstance(error, BrokenPipeError):  # the reader of the output has not closed it
            print_error(f"cannot write the output: {error.strerror}")
    sys.exit(code)
