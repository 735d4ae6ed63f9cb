"""``RequestReport``: how one request went, told once when it is over.

Metrics, the request log and traces all follow from it, so that watching a request costs nothing while it runs: the engine
has measured its times, and what happened when is known at the end. No prompt and no text is in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from draftline.engine.outputs import Finished, FinishReason, Update


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests come from: one call of one client.

    Attributes:
        call: the method's name.
        peer: the client's address.
        caller: whose token the call has; empty where there are none.
        trace: the client's W3C trace context, by header name; empty where it sent none.
    """

    call: str
    peer: str = ""
    caller: str = ""
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestReport:
    """See the module.

    Attributes:
        origin: the call.
        request_id: the server's name of it, unique over all calls; the step thread's log has it too.
        client_id: what its client calls it; may be empty.
        started_ns: when it arrived, in nanoseconds since 1970.
        seconds: from its arrival to its end.
        code: the name of its ``google.rpc.Code``.
        outputs: the ends of its outputs, as far as they were reached.
    """

    origin: Origin
    request_id: str
    client_id: str
    started_ns: int
    seconds: float
    code: str
    outputs: tuple[Finished, ...]


Observer = Callable[[RequestReport], None]
"""Takes a report, on the event loop; it returns at once."""


class OpenRequest:
    """A request that is not over: collects what its report will say."""

    def __init__(self, observers: Sequence[Observer], origin: Origin, request_id: str, client_id: str) -> None:
        """It arrives now."""
        self._observers = observers
        self._origin = origin
        self._request_id = request_id
        self._client_id = client_id
        self._started_ns = time.time_ns()
        self._started = time.monotonic()
        self._outputs: list[Finished] = []
        self._reported = False

    def note(self, update: Update) -> None:
        """Take in what the engine says of it."""
        match update:
            case Finished():
                self._outputs.append(update)

    def close(self, code: str) -> None:
        """It is over; tell everyone. Only the first call counts.

        Args:
            code: how its client was told; ``OK`` where every output has ended.
        """
        if self._reported:
            return
        self._reported = True
        cancelled = any(output.finish_reason is FinishReason.CANCELLED for output in self._outputs)
        report = RequestReport(
            self._origin,
            self._request_id,
            self._client_id,
            self._started_ns,
            time.monotonic() - self._started,
            "CANCELLED" if code == "OK" and cancelled else code,
            tuple(self._outputs),
        )
        for observe in self._observers:
            observe(report)
