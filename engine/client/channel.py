"""How clients open their channels."""

from __future__ import annotations

from collections.abc import Iterable

import grpc.aio

from draftline.engine.client.tls import Tls

OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""Connect for this channel alone.

By default all channels of a process share their connections, and with them the wait after a failed one, which outlives
the channel that failed: a client that is made once its server is up again could not connect until that wait is over.
"""


def open_channel(address: str, tls: Tls | None, options: Iterable[tuple[str, int]] = ()) -> grpc.aio.Channel:
    """A channel with connections of its own; plaintext without ``tls``. It connects at the first call.

    Raises:
        InvalidRequestError: a file of ``tls`` cannot be used.
    """
    options = [OWN_CONNECTION, *options]
    if tls is None:
        return grpc.aio.insecure_channel(address, options)
    return grpc.aio.secure_channel(address, tls.credentials(), options)
