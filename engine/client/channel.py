"""The option that every channel of a client has."""

from __future__ import annotations

OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""Connect for this channel alone.

By default all channels of a process share their connections, and with them the wait after a failed one, which outlives
the channel that failed: a client that is made once its server is up again could not connect until that wait is over.
"""
