"""``draftline top``: a running server's metrics, live."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from draftline.engine.cli.backend import connected, server_errors
from draftline.engine.cli.connection import Connection
from draftline.engine.cli.views.top import Snapshot, view
from draftline.engine.config import EngineConfig
from draftline.v1 import admin_pb2 as pb
from draftline.v1.admin_pb2_grpc import AdminServiceStub


def top(
    server: Annotated[str, typer.Argument(help="the server's address")] = "127.0.0.1:50051",
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="seconds between updates", min=0.1, max=60)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="print the metrics of one interval, and end")] = False,
    *,
    connection: Connection,
) -> None:
    """Watch a server's load, speed, latencies, cache and drafts.

    Where the output is no terminal, each interval's metrics are printed one after the other.

    **Examples**

    - `draftline top` watches the server on this machine
    - `draftline top gpu7:50051 --interval 5`
    - `draftline top --once` for scripts
    """
    with connected(server, EngineConfig(), connection) as channel, server_errors():
        stub = AdminServiceStub(channel)

        def snapshot() -> Snapshot:
            return Snapshot.of(stub.GetStatistics(pb.GetStatisticsRequest()).metrics, time.monotonic())

        def next_view(before: Snapshot) -> tuple[Snapshot, RenderableType]:
            time.sleep(interval)
            now = snapshot()
            return now, view(server, before, now)

        last = snapshot()
        console = Console()
        while once or not console.is_terminal:  # where `Live` prints nothing
            last, shown = next_view(last)
            console.print(shown)
            if once:
                return
        with Live(view(server, last, last), screen=True, auto_refresh=False) as live:
            while True:
                last, shown = next_view(last)
                live.update(shown, refresh=True)
