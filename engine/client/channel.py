"""How clients open their channels, and in which processes."""

from __future__ import annotations

from collections.abc import Iterable

import grpc.aio

from draftline.engine.client.tls import Tls
from draftline.engine.errors import CallFailedError, fork_problem

OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""Connect for this channel alone.

By default all channels of a process share their connections, and with them the wait after a failed one, which outlives
the channel that failed: a client that is made once its server is up again could not connect until that wait is over.
"""


def open_channel(address: str, tls: Tls | None, options: Iterable[tuple[str, int]] = ()) -> grpc.aio.Channel:
    """A channel with connections of its own; plaintext without ``tls``. It connects at the first call.

    Raises:
        InvalidRequestError: a file of ``tls`` cannot be used.
        CallFailedError: see `refuse_fork`.
    """
    refuse_fork()
    options = [OWN_CONNECTION, *options]
    if tls is None:
        return grpc.aio.insecure_channel(address, options)
    return grpc.aio.secure_channel(address, tls.credentials(), options)


def refuse_fork() -> None:
    """Raise `CallFailedError` in a fork of the process that opened the first channel: it has none of gRPC's threads."""
    if problem := fork_problem("made a client", "make clients"):
        raise CallFailedError(problem)
