"""``LiveRequests``: the unfinished requests, the states of their outputs, and the updates that their clients get."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from draftline.engine.errors import DeadlineExceededError, DraftlineError, StepFailedError
from draftline.engine.outputs import Failed, Update
from draftline.engine.protocol import Sink
from draftline.engine.request.backlog import Backlog
from draftline.engine.request.deadlines import Deadlines
from draftline.engine.request.request import Request
from draftline.engine.request.sequence import Sequence
from draftline.engine.scheduling.scheduler import Scheduler
from draftline.engine.streaming.output_state import OutputState

logger = logging.getLogger(__name__)

OutputUpdates = list[tuple[OutputState, tuple[Update, ...]]]
"""Updates for the clients, by output."""


class LiveRequests:
    """Knows how each request begins and ends. One thread uses it, but for the methods that say otherwise.

    Attributes:
        outputs: the states of the outputs whose end is not delivered.
        backlog: the requests that have not run yet. Other threads may read its counts.
        failed_outputs: how many outputs an error or a limit of their own has ended.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        new_output: Callable[[Request, Sequence], OutputState],
        forget: Callable[[Sequence], object],
    ) -> None:
        """No request yet.

        Args:
            scheduler: what the sequences wait for and hold.
            new_output: makes the state of an output without tokens.
            forget: called with each sequence once its output's end, or its request's, is delivered.
        """
        self.outputs: dict[Sequence, OutputState] = {}
        self.backlog = Backlog()
        self.failed_outputs = 0
        self._requests: dict[str, Request] = {}
        self._deadlines = Deadlines()
        self._scheduler = scheduler
        self._new_output = new_output
        self._forget = forget

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request is unfinished. Any thread may ask. It ends before its last update is delivered."""
        return request_id in self._requests

    def add(self, request: Request, order: float) -> None:
        """Queue a request, whose id no live request has, with its place in the queue."""
        self._requests[request.request_id] = request
        self._deadlines.add(request)
        self.backlog.add(request)
        for sequence in request.sequences:
            sequence.order = order
            self.outputs[sequence] = self._new_output(request, sequence)
            self._scheduler.add(sequence)

    def start(self, sequences: Iterable[Sequence], now: float) -> None:
        """Note that sequences run in a step that was planned at ``now``, once all earlier ones are told."""
        for sequence in sequences:
            output = self.outputs.get(sequence)
            if output is not None:  # else its request has failed meanwhile
                output.mark_scheduled(now)
                self.backlog.start(sequence.request_id, now)

    def displace(self, request_id: str, error: DraftlineError) -> None:
        """End a request that has not run with ``error``, for the sake of another one. Others are ignored."""
        request = self._requests.get(request_id)
        if request is not None and self.backlog.has(request_id):
            self.deliver(self._end(request.sequences, error))

    def cancel(self, request_id: str) -> None:
        """End a request in the next step. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            for sequence in request.sequences:
                self._scheduler.cancel(sequence)

    def expire(self, now: float) -> OutputUpdates:
        """End the requests that are past their deadline, whether they run or wait."""
        updates: OutputUpdates = []
        for request in self._deadlines.expired(now):
            # Outputs that have finished have ended in time.
            updates += self._end([one for one in request.sequences if not one.finished], DeadlineExceededError())
        return updates

    def end_cancelled(self, sequences: Iterable[Sequence], now: float) -> OutputUpdates:
        """The last updates of outputs that were cancelled, and hold nothing any more."""
        updates: OutputUpdates = []
        for sequence in sequences:
            output = self.outputs.get(sequence)
            if output is None:
                continue  # its request has failed meanwhile
            try:
                updates.append((output, output.cancel(now)))
            except Exception as error:  # noqa: BLE001 - it ends this request only
                updates += self.fail_output(sequence, error)
        return updates

    def fail_output(self, sequence: Sequence, error: Exception) -> OutputUpdates:
        """End the request of an output because of an error or a limit of the output's own."""
        self.failed_outputs += 1
        if isinstance(error, DraftlineError):
            logger.warning("request %s failed: %s", sequence.request_id, error)
            return self._end([sequence], error)
        logger.error("request %s failed", sequence.request_id, exc_info=error)
        return self.fail([sequence], error)

    def fail(self, sequences: Iterable[Sequence], error: Exception) -> OutputUpdates:
        """End the requests that these sequences belong to because of a fault."""
        failure = StepFailedError()
        failure.__cause__ = error
        return self._end(sequences, failure)

    def fail_all(self, error: Exception) -> None:
        """End every request with ``error``. Frees nothing: the engine has ended."""
        requests, self._requests, self.outputs = self._requests, {}, {}
        for request_id, request in requests.items():
            request.sink([(request_id, Failed(error))])

    def deliver(self, updates: OutputUpdates) -> None:
        """Forget the outputs that these updates end, and call each sink once with all of its updates.

        Updates that follow the failure of their request are dropped.
        """
        if not updates:
            return
        by_sink: dict[Sink, list[tuple[str, Update]]] = defaultdict(list)
        for output, of_output in updates:
            if output.sequence not in self.outputs:
                continue  # its request has failed
            request = output.request
            for update in of_output:
                by_sink[request.sink].append((request.request_id, update))
                if isinstance(update, Failed):
                    self._forget_outputs(request, request.sequences)
                elif update.ends_output:
                    self._forget_outputs(request, (output.sequence,))
        for sink, pairs in by_sink.items():
            sink(pairs)

    def _end(self, sequences: Iterable[Sequence], failure: DraftlineError) -> OutputUpdates:
        """End the requests that these sequences belong to, which are live, with ``failure``."""
        failed = {sequence.request_id: sequence for sequence in sequences}
        for request_id in failed:
            for sequence in self._requests[request_id].sequences:
                self._scheduler.finish(sequence)
        return [(self.outputs[sequence], (Failed(failure),)) for sequence in failed.values()]

    def _forget_outputs(self, request: Request, sequences: Iterable[Sequence]) -> None:
        """Forget outputs whose end is delivered, and their request with the last one.

        A sequence that has finished is no sign of that: its client may not know yet.
        """
        for sequence in sequences:
            if self.outputs.pop(sequence, None) is not None:
                self._forget(sequence)
        if not any(sequence in self.outputs for sequence in request.sequences):
            self._requests.pop(request.request_id, None)
            self.backlog.drop(request.request_id)
            self._deadlines.drop(request.request_id)
