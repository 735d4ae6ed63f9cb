"""Clients and forks: gRPC's threads do not survive them."""

from __future__ import annotations

import subprocess
import sys

from fake_engine import FakeEngine
from patience import PATIENCE_S
from served_on_a_thread import served_on_a_thread

PROGRAM = """
import asyncio, os, sys
from draftline import AsyncClient, CallFailedError, Client

[address] = sys.argv[1:]

async def ask(client):
    await client.model()

def in_fork():
    calls = (
        lambda: client.generate("abc"),
        lambda: client.submit("abc"),
        lambda: Client(address),
        lambda: AsyncClient(address),
        lambda: asyncio.run(ask(async_client)),
    )
    for call in calls:
        try:
            call()
        except CallFailedError as error:
            assert "fork" in str(error)
        else:
            raise AssertionError("it runs")
    client.close()
    os._exit(7)  # as multiprocessing's processes end

async def make():
    return AsyncClient(address)

async_client = asyncio.run(make())
with Client(address) as client:
    client.generate("abc")
    codes = set()
    for turn in range(50):
        if (child := os.fork()) == 0:
            in_fork() if turn == 0 else os._exit(0)
        codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("forks:", *sorted(codes))
"""


def test_clients_refuse_forks_and_forks_live() -> None:
    with served_on_a_thread(FakeEngine()) as server:
        command = [sys.executable, "-c", PROGRAM, server.address]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.stdout, ended.stderr) == ("forks: 0 7\n", "")
