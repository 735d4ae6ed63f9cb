"""``RequestReport``: the account of one request, made once when the request has ended.

Metrics, the request log and traces all derive from it, so observing a request costs nothing while it runs. The engine
has measured the times by then. A report contains no prompt and no output text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from draftline.engine.outputs import Finished, FinishReason, Update
from draftline.engine.server.codes import CANCELLED, OK

TRACE_HEADERS = ("traceparent", "tracestate")
"""The headers of a W3C trace context."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of requests: one call of one client.

    Attributes:
        call: the name of the method.
        peer: the client's address.
        caller: the name of the call's token; empty without tokens.
        trace: the client's W3C trace context, by header name; empty if it sent none.
    """

    call: str
    peer: str = ""
    caller: str = ""
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestReport:
    """The account of one request.

    Attributes:
        origin: the source of the request.
        request_id: the server's name for the request, unique over all calls; the step thread logs it too.
        client_id: the client's name for the request; may be empty.
        started_ns: time of arrival, in nanoseconds since 1970.
        seconds: from arrival to end.
        code: the name of its ``google.rpc.Code``.
        outputs: the ends of those outputs that have ended.
        reason: why the request was refused or failed, as the client is told; empty if it was not.
        submitted: whether the engine got the request. It may still have refused it.
        operation: ``chat`` or ``text_completion``, as OpenTelemetry names them; empty if the call asked for neither.
    """

    origin: Origin
    request_id: str
    client_id: str
    started_ns: int
    seconds: float
    code: str
    outputs: tuple[Finished, ...]
    reason: str = ""
    submitted: bool = False
    operation: str = ""

    @property
    def refused(self) -> bool:
        """Whether the request was refused, which its client can change."""
        return self.code in _REFUSED


_REFUSED = {
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "ALREADY_EXISTS",
    "NOT_FOUND",
}

Observer = Callable[[RequestReport], None]
"""Receives a report, on the event loop. It must not block."""


class ReportBuilder:
    """Builds the report of one request while the request is in flight.

    Attributes:
        submitted: whether the engine has got the request.
        operation: see `RequestReport`.
    """

    def __init__(self, observers: Sequence[Observer], origin: Origin, request_id: str, client_id: str) -> None:
        """Begin the report of a request that arrives now."""
        self._observers = observers
        self._origin = origin
        self._request_id = request_id
        self._client_id = client_id
        self._started_ns = time.time_ns()
        self._started = time.monotonic()
        self._outputs: list[Finished] = []
        self.submitted = False
        self.operation = ""

    def note(self, update: Update) -> None:
        """Record an update of the request."""
        if isinstance(update, Finished):
            self._outputs.append(update)

    def finish(self, code: str, reason: str = "") -> None:
        """Send the report to the observers. Call this once.

        Args:
            code: the name of the code that the client got; ``OK`` if every output has ended.
            reason: why, if the client was told.
        """
        cancelled = any(output.finish_reason is FinishReason.CANCELLED for output in self._outputs)
        report = RequestReport(
            origin=self._origin,
            request_id=self._request_id,
            client_id=self._client_id,
            started_ns=self._started_ns,
            seconds=time.monotonic() - self._started,
            code=CANCELLED if code == OK and cancelled else code,
            outputs=tuple(self._outputs),
            reason=reason,
            submitted=self.submitted,
            operation=self.operation,
        )
        for observe in self._observers:
            observe(report)
