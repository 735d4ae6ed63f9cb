"""``Front``: what all services of one server share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from draftline.engine.gate import Gate
from draftline.engine.mailbox import Hub
from draftline.engine.reports import Observer
from draftline.engine.server_config import ServerConfig


@dataclass(frozen=True, slots=True)
class Front:
    """See the module.

    Attributes:
        gate: lets requests in to the engine.
        hub: brings the event loop's mailboxes their updates.
        config: the server's.
        observers: told of every request that is over.
    """

    gate: Gate
    hub: Hub
    config: ServerConfig
    observers: Sequence[Observer]
    _serials: Iterator[int] = field(default_factory=count)

    def next_name(self) -> str:
        """A name for a call that no other call of the server has."""
        return f"s{next(self._serials)}"
