"""The engine process sends updates once a step is launched, and no step waits for that."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENCE_S

from draftline.engine.outputs import Delta
from draftline.engine.process import worker
from draftline.engine.process.message_socket import MessageSocket
from draftline.engine.process.messages import Stopped, Updates
from draftline.engine.process.worker import _Outbox


@contextmanager
def outbox() -> Iterator[tuple[_Outbox, MessageSocket]]:
    """An outbox that sends, and the server's end of its connection."""
    ours, theirs = socket.socketpair()
    server, sends = MessageSocket(ours), _Outbox(MessageSocket(theirs))
    ours.settimeout(PATIENCE_S)
    state = object()
    engine: Any = SimpleNamespace(stats=lambda: state)
    sender = threading.Thread(target=sends.run, args=(engine,), daemon=True)
    sender.start()
    yield sends, server
    sends.send(Stopped(None))
    sender.join(PATIENCE_S)
    assert not sender.is_alive()
    ours.close()
    theirs.close()


def readable(server: MessageSocket, timeout_s: float) -> bool:
    return bool(select.select([server], [], [], timeout_s)[0])


def tokens_of(message: Updates) -> list[int]:
    return [token for _, update in message if isinstance(update, Delta) for token in update.token_ids]


def test_a_step_waits_for_no_slow_reader() -> None:
    with outbox() as (sends, server):
        count = 200  # ten times as much as the connection holds
        for token in range(count):
            sends.put([("a", Delta(0, (token,), "x" * 10_000))])
            sends.release()  # a send that blocks would deadlock: the server does not read yet
        tokens: list[int] = []
        messages = 0
        while len(tokens) < count:
            message = server.receive()
            tokens += tokens_of(message)
            messages += bool(message.deltas)
        assert tokens == list(range(count))
        assert messages < count  # what waited has shared messages


@pytest.mark.parametrize("size", [1, 100_000, 10_000_000])
def test_a_step_waits_for_no_message_however_large(size: int) -> None:
    """A connection that has room need not have it for a whole message."""
    with outbox() as (sends, server):
        for token in range(3):
            sends.put([("a", Delta(0, (token,), "x" * size))])
            sends.release()  # a send that blocks would deadlock: the server does not read yet
        tokens: list[int] = []
        while len(tokens) < 3:
            message = server.receive()
            assert all(len(update.text) == size for _, update in message if isinstance(update, Delta))
            tokens += tokens_of(message)
        assert tokens == [0, 1, 2]


def test_several_threads_may_release() -> None:
    with outbox() as (sends, server):

        def step(name: str) -> None:
            for token in range(500):
                sends.put([(name, Delta(0, (token,), "x"))])
                sends.release()

        names = ("a", "b", "c")
        steps = [threading.Thread(target=step, args=(name,)) for name in names]
        for thread in steps:
            thread.start()
        tokens: dict[str, list[int]] = {name: [] for name in names}
        while sum(map(len, tokens.values())) < 1500:
            for name, update in server.receive():
                assert isinstance(update, Delta)
                tokens[name] += update.token_ids
        assert tokens == {name: list(range(500)) for name in names}  # each thread's in order
        for thread in steps:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_a_step_goes_on_where_the_server_has_ended() -> None:
    """Another thread ends the process."""
    ours, theirs = socket.socketpair()
    sends = _Outbox(MessageSocket(theirs))
    ours.close()
    for token in range(3):
        sends.put([("a", Delta(0, (token,), "x"))])
        sends.release()
    theirs.close()


def test_updates_are_sent_when_a_step_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_STATS_S", PATIENCE_S)  # else they are sent after this time in any case
    with outbox() as (sends, server):
        sends.put([("a", Delta(0, (5,), "x"))])
        sends.put([("a", Delta(0, (6,), "y"))])
        assert not readable(server, 0.1)
        sends.release()
        assert readable(server, 0), "another thread sends them"
        message = server.receive()
        assert [(name, update.token_ids) for name, update in message if isinstance(update, Delta)] == [
            ("a", (5,)),
            ("a", (6,)),
        ]
        sends.put([("a", Delta(0, (7,), "z"))])
        sends.send(Stopped(None))  # what was put before goes first
        assert tokens_of(server.receive()) == [7]
        assert isinstance(server.receive(), Stopped)
