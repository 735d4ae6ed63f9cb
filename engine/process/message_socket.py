"""``MessageSocket``: one end of the socket between the server process and the engine process."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import Any

_LENGTH = struct.Struct("!Q")
"""A message's bytes follow their number."""


class MessageSocket:
    """Sends and receives pickled messages. At any time one thread may send, and one receive."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected stream socket."""
        connected.setblocking(True)  # whatever ``socket.setdefaulttimeout`` says
        self._socket = connected
        self._unsent = memoryview(b"")

    @property
    def has_unsent(self) -> bool:
        """Whether a part of a message waits for `finish`."""
        return bool(self._unsent)

    def begin(self, message: object) -> None:
        """Send as much of a message as there is room for, without waiting, and keep the rest.

        `has_unsent` must be false.

        Raises:
            OSError: the other end is closed.
        """
        data = _framed(message)
        try:
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        self._unsent = memoryview(data)[sent:]

    def finish(self) -> None:
        """Send the rest of the message that was begun. Waits until there is room.

        Raises:
            OSError: the other end is closed.
        """
        if self._unsent:
            self._socket.sendall(self._unsent)
            self._unsent = memoryview(b"")

    def send(self, message: object) -> None:
        """Send a message, after the rest of the one that was begun. Waits until there is room.

        Raises:
            OSError: the other end is closed.
        """
        self.finish()
        self._socket.sendall(_framed(message))

    def receive(self) -> Any:
        """Wait for the next message.

        Raises:
            EOFError: the other end is closed.
            OSError: the connection is broken.
        """
        (length,) = _LENGTH.unpack(self._receive_bytes(_LENGTH.size))
        return pickle.loads(self._receive_bytes(length))

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._socket.close()

    def _receive_bytes(self, count: int) -> bytearray:
        data = bytearray(count)
        lacking = memoryview(data)
        while lacking:
            received = self._socket.recv_into(lacking)
            if not received:
                raise EOFError
            lacking = lacking[received:]
        return data


class MessageSender:
    """Sends the messages of any thread, in their order. None waits for a process that reads too slowly, or stalls."""

    def __init__(self, connection: MessageSocket) -> None:
        """The only sender of ``connection``."""
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting: deque[object] = deque()
        self._has_thread = False

    def send(self, message: object) -> None:
        """Send a message. Where there is no room for all of it, a thread sends the rest, and what comes after it.

        Raises:
            OSError: the other end is closed.
        """
        with self._lock:
            if self._has_thread:
                self._waiting.append(message)
                return
            self._connection.begin(message)
            if self._connection.has_unsent:
                self._has_thread = True
                threading.Thread(target=self._send_waiting, name="draftline-unsent", daemon=True).start()

    def _send_waiting(self) -> None:
        with suppress(OSError):  # the thread that receives notices that the other end is closed
            while True:
                self._connection.finish()
                with self._lock:
                    if not self._waiting:
                        self._has_thread = False
                        return
                    self._connection.begin(self._waiting.popleft())


def _framed(message: object) -> bytes:
    data = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(data)) + data
