"""``Front``: what all services of one server share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from draftline.engine.access import Access, Caller
from draftline.engine.client import EngineClient
from draftline.engine.errors import DraftlineError
from draftline.engine.gate import Gate
from draftline.engine.mailbox import Hub
from draftline.engine.reports import Observer
from draftline.engine.server_config import ServerConfig


@dataclass(frozen=True, slots=True)
class Front:
    """See the module.

    Attributes:
        gate: lets requests in to the engine.
        access: knows callers.
        hub: brings the event loop's mailboxes their updates.
        config: the server's.
        observers: told of every request that is over.
    """

    gate: Gate
    access: Access
    hub: Hub
    config: ServerConfig
    observers: Sequence[Observer]
    _serials: Iterator[int] = field(default_factory=count)

    def enter(self, caller: Caller) -> EngineClient:
        """The engine, for one request of a caller, which must `leave` when it is over.

        Raises:
            EngineStoppedError: the engine is not ready, or the server is draining.
            QueueFullError: that would be more than the caller's token allows.
        """
        engine = self.gate.enter()
        try:
            caller.enter()
        except DraftlineError:
            self.gate.leave()
            raise
        return engine

    def leave(self, caller: Caller) -> None:
        """End what one `enter` began."""
        caller.leave()
        self.gate.leave()

    def next_name(self) -> str:
        """A name for a call that no other call of the server has."""
        return f"s{next(self._serials)}"
