"""The engine process sends updates once a step is launched, and no step waits for that."""

from __future__ import annotations

import pickle
import threading
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENCE_S

from draftline.engine.outputs import Delta
from draftline.engine.process import worker
from draftline.engine.process.messages import Stopped, Updates
from draftline.engine.process.worker import _Outbox


def sent_tokens(message: Updates) -> list[int]:
    return [token for _, update in message if isinstance(update, Delta) for token in update.token_ids]


def test_a_step_waits_for_no_slow_reader() -> None:
    ours, theirs = Pipe()
    outbox, state = _Outbox(theirs), object()
    engine: Any = SimpleNamespace(stats=lambda: state)
    sender = threading.Thread(target=outbox.run, args=(engine,))
    sender.start()
    count = 200  # ten times as much as the connection holds
    for token in range(count):
        outbox.put([("a", Delta(0, (token,), "x" * 10_000))])
        outbox.release()  # would wait for ever: nobody reads
    tokens: list[int] = []
    messages = 0
    while len(tokens) < count:
        assert ours.poll(PATIENCE_S)
        message = pickle.loads(ours.recv_bytes())
        tokens += sent_tokens(message)
        messages += bool(message.deltas)
    assert tokens == list(range(count))
    assert messages < count  # what waited has shared messages
    outbox.send(Stopped(None))
    sender.join(PATIENCE_S)
    assert not sender.is_alive()


def test_several_threads_may_release() -> None:
    ours, theirs = Pipe()
    outbox, engine = _Outbox(theirs), SimpleNamespace(stats=object)
    sender = threading.Thread(target=outbox.run, args=(engine,))

    def step(token: int) -> None:
        for _ in range(500):
            outbox.put([("a", Delta(0, (token,), "x"))])
            outbox.release()

    steps = [threading.Thread(target=step, args=(token,)) for token in range(3)]
    for thread in (sender, *steps):
        thread.start()
    tokens: list[int] = []
    while len(tokens) < 1500:
        assert ours.poll(PATIENCE_S)
        tokens += sent_tokens(pickle.loads(ours.recv_bytes()))
    assert sorted(tokens) == [token for token in range(3) for _ in range(500)]
    outbox.send(Stopped(None))
    for thread in (sender, *steps):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_updates_are_sent_when_a_step_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_STATS_S", PATIENCE_S)  # else they are sent after this time in any case
    ours, theirs = Pipe()
    outbox, state = _Outbox(theirs), object()
    engine: Any = SimpleNamespace(stats=lambda: state)
    sender = threading.Thread(target=outbox.run, args=(engine,))
    sender.start()
    outbox.put([("a", Delta(0, (5,), "x"))])
    outbox.put([("a", Delta(0, (6,), "y"))])
    assert not ours.poll(0.1)
    outbox.release()
    message = pickle.loads(ours.recv_bytes())
    assert isinstance(message, Updates)
    assert [(name, update.token_ids) for name, update in message if isinstance(update, Delta)] == [
        ("a", (5,)),
        ("a", (6,)),
    ]
    outbox.put([("a", Delta(0, (7,), "z"))])
    outbox.send(Stopped(None))  # what was put before goes first
    assert isinstance(pickle.loads(ours.recv_bytes()), Updates)
    assert isinstance(pickle.loads(ours.recv_bytes()), Stopped)
    sender.join(PATIENCE_S)
    assert not sender.is_alive()
