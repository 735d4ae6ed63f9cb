"""``draftline run-batch``: answer a file of requests, on a server or on an engine in this process."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from tqdm import tqdm

from draftline.engine.batch.lines import PlainPrompts, check_ids, has_only_bodies, read_lines
from draftline.engine.batch.output import AnswerFile
from draftline.engine.cli.connection import TOKEN_VARIABLE, check_no_engine_options
from draftline.engine.cli.models import find_models
from draftline.engine.cli.options import given_flags
from draftline.engine.client.access import checked_token, http_url_problem
from draftline.engine.config import EngineConfig
from draftline.engine.errors import MissingExtraError, UsageError, temporary_folder
from draftline.engine.params import Constraint, SamplingParams

SOME_FAILED = 3
"""The exit code of a run in which every request has its line, and some lines are errors."""


def run_batch(
    requests: Annotated[Path, typer.Argument(help="JSON lines of requests", metavar="IN.jsonl")],
    answers: Annotated[Path, typer.Argument(help="the file for their answers", metavar="OUT.jsonl")],
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="use a running server's HTTP port, such as http://gpu7:8000")
    ] = None,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, max=4096, help="requests in flight at once")] = 256,
    as_finished: Annotated[
        bool, typer.Option("--as-finished", help="write answers as they finish, not in the order of the requests")
    ] = False,
    as_chat: Annotated[bool, typer.Option("--chat", help="send plain prompts as users' messages")] = False,
    *,
    sampling: SamplingParams,
    constraint: Constraint | None,
    engine: EngineConfig,
) -> None:
    """Answer the requests of a file.

    A line is one of OpenAI's batch requests (`custom_id`, `url`, `body`), or a plain prompt: a JSON text, or an object
    with `prompt` or `messages` and other fields of a body. Sampling options and a constraint are for plain prompts.

    An answer has OpenAI's form, an error too. A run that was killed goes on where it was: run the same command again.

    Exit codes: 0, every request has an answer; 3, all have their lines, and some of these are errors; 1, the run
    stopped early; 2, wrong usage.

    **Examples**

    - `draftline run-batch in.jsonl out.jsonl --schema person.json --chat --max-tokens 200`
    - `draftline run-batch in.jsonl out.jsonl --server http://gpu7:8000`, with the token in `DRAFTLINE_TOKEN`
    - `draftline run-batch in.jsonl out.jsonl --model ./Qwen3-0.6B --as-finished`
    """
    if server is not None:
        check_no_engine_options(engine)
    plain = PlainPrompts(_defaults(sampling, constraint), as_chat)
    ids = check_ids(requests, plain)
    of_plain = [
        *given_flags(sampling),
        *(given_flags(constraint) if constraint else ()),
        *(["--chat"] if as_chat else []),
    ]
    if of_plain and has_only_bodies(requests, plain):
        given = ", ".join(sorted(of_plain))
        raise UsageError(f"{given}: for plain prompts, and each request of {requests} has a body of its own")
    with AnswerFile(answers, ids) as file:
        if len(file.answered) == len(ids):
            typer.echo(f"all {len(ids)} requests have answers", err=True)
        else:
            asyncio.run(_run(requests, file, plain, len(ids), server, concurrency, as_finished, engine))
        failed = file.failed
    if failed:
        typer.echo(f"{failed} of {len(ids)} requests ended with an error, which their lines have", err=True)
        raise typer.Exit(SOME_FAILED)


async def _run(
    requests: Path,
    file: AnswerFile,
    plain: PlainPrompts,
    total: int,
    server: str | None,
    concurrency: int,
    as_finished: bool,
    engine: EngineConfig,
) -> None:
    """Run the batch."""
    try:
        import httpx2  # an optional dependency

        from draftline.engine.batch.run import run_batch
    except ImportError as error:
        raise MissingExtraError("run-batch", "http") from error

    async with _target(server, engine) as (url, token):
        limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        with tqdm(total=total, initial=len(file.answered), unit="request") as bar:
            async with httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=None) as client:
                lines = read_lines(requests, plain)
                await run_batch(
                    lines, client, file, concurrency=concurrency, in_order=not as_finished, progress=bar.update
                )


@asynccontextmanager
async def _target(server: str | None, config: EngineConfig) -> AsyncIterator[tuple[str, str]]:
    """The URL and the token of the server: a running one, or one in this process that no other program can use."""
    if server is not None:
        if problem := http_url_problem(server):
            raise UsageError(f"--server: {server}: {problem}")
        yield server, checked_token(os.environ.get(TOKEN_VARIABLE, ""))
        return
    find_models(config)
    from draftline.engine.server.config import ServerConfig
    from draftline.engine.server.server import Server
    from draftline.engine.threaded_engine import start_engine  # imports torch, which takes seconds

    token = secrets.token_urlsafe(24)
    with temporary_folder() as folder:
        tokens = folder / "tokens.yaml"
        tokens.touch(mode=0o600)
        tokens.write_text(yaml.safe_dump({"tokens": [{"name": "batch", "token": token}]}))
        here = Server(ServerConfig(port=0, http_port=0, tokens=str(tokens), log_requests=False))
        await here.start()
        try:
            engine = await asyncio.to_thread(start_engine, config)
            try:
                await here.serve(engine)
                yield f"http://{here.http_address}", token
            finally:
                await here.abort()
                await asyncio.to_thread(engine.close)
        finally:
            await here.abort()


def _defaults(sampling: SamplingParams, constraint: Constraint | None) -> dict[str, Any]:
    """The options of plain prompts, as fields of a body."""
    fields = sampling.model_dump(mode="json", exclude_unset=True)
    if constraint is not None:
        structured = constraint.model_dump(mode="json", exclude_unset=True)
        if "json_schema" in structured:
            structured["json"] = structured.pop("json_schema")
        fields["structured_outputs"] = structured
    return fields
