"""The server process sends to an engine process, and never waits for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from patience import PATIENCE_S

from draftline.engine.process.message_socket import MessageSender, MessageSocket


@pytest.fixture
def ends() -> Iterator[tuple[MessageSender, MessageSocket]]:
    """A sender, and the other end of its connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = MessageSocket(theirs)
        theirs.settimeout(PATIENCE_S)
        yield MessageSender(MessageSocket(ours)), receiver


def test_no_message_waits_for_a_reader(ends: tuple[MessageSender, MessageSocket]) -> None:
    """A send that blocks would deadlock: nothing is read yet. What the connection does not hold comes later, in order."""
    sender, receiver = ends
    for _ in range(2):  # the connection is free again in between
        messages = [(number, "x" * 10_000) for number in range(200)]
        for message in messages:
            sender.send(message)
        assert [receiver.receive() for _ in messages] == messages


def test_a_message_may_be_larger_than_the_connection(ends: tuple[MessageSender, MessageSocket]) -> None:
    sender, receiver = ends
    for message in ("x" * 10_000_000, "y"):
        sender.send(message)
    assert [len(receiver.receive()) for _ in range(2)] == [10_000_000, 1]


def test_each_thread_s_messages_stay_in_order(ends: tuple[MessageSender, MessageSocket]) -> None:
    sender, receiver = ends

    def send(name: str) -> None:
        for number in range(200):
            sender.send((name, number, "x" * 5_000))

    threads = [threading.Thread(target=send, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    found: dict[str, list[int]] = {name: [] for name in "abc"}
    for _ in range(600):
        name, number, _ = receiver.receive()
        found[name].append(number)
    assert found == {name: list(range(200)) for name in "abc"}
    for thread in threads:
        thread.join(PATIENCE_S)


def test_a_closed_end_is_an_error(ends: tuple[MessageSender, MessageSocket]) -> None:
    sender, receiver = ends
    receiver.close()
    with pytest.raises(OSError, match="Broken pipe"):
        sender.send("x")
