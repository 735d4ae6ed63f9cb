"""``Listener``: one face of a server, on one port. The server starts and stops all of its listeners together."""

from __future__ import annotations

import socket
from typing import Protocol

from draftline.engine.errors import CannotListenError


class Listener(Protocol):
    """A face of the server: a port, and the services behind it."""

    @property
    def address(self) -> str:
        """``host:port``. The port is the configured one until `start`, and the real one afterwards."""
        ...

    @property
    def connections(self) -> int:
        """How many connections of clients are open."""
        ...

    async def start(self) -> None:
        """Listen.

        Raises:
            CannotListenError: the address cannot be used.
        """
        ...

    async def stop(self, grace_s: float | None) -> None:
        """Stop listening. Open calls get ``grace_s`` seconds to end; None ends them at once. Idempotent."""
        ...


def format_address(host: str, port: int) -> str:
    """``host:port``, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_can_listen(host: str, port: int) -> None:
    """Try to listen on an address, since the operating system's error says why that fails.

    Raises:
        CannotListenError: the address is not this machine's, or the port is in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise CannotListenError(f"cannot listen on {format_address(host, port)}: {error.strerror}") from error
