"""``JobQueue``: jobs of many callers on a few threads: bounded, fair, and dropped when no caller waits for them."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from draftline.structured.errors import ClosedError, JobQueueFullError

T = TypeVar("T")


class QueuedJob(Generic[T]):
    """One job, and those who wait for it. Thread-safe."""

    def __init__(
        self, work: Callable[[QueuedJob[T]], T], on_over: Callable[[QueuedJob[T]], None] | None = None
    ) -> None:
        """A job that does not run yet.

        Args:
            work: the work. It gets the job itself, for `on_abandon`.
            on_over: called once, when the job is over, before those who wait are told. It must not block.
        """
        self._work = work
        self._on_over = on_over
        self._lock = threading.Lock()
        self._waiters: set[Future[T]] = set()
        self._over = False
        self._stop: Callable[[], None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or no caller waits for it any more."""
        return self._over

    def join(self) -> Future[T] | None:
        """A future of the result; None if the job is over. The job is dropped when all its futures are cancelled."""
        future: Future[T] = Future()
        with self._lock:
            if self._over:
                return None
            self._waiters.add(future)
        future.add_done_callback(self._leave)
        return future

    def on_abandon(self, stop: Callable[[], None] | None) -> None:
        """Call ``stop`` when no caller waits any more, at once if that is so already. It must not block."""
        with self._lock:
            self._stop = stop
            abandoned = self._over
        if abandoned and stop is not None:
            stop()

    def run(self) -> None:
        """Do the work, and tell those who wait."""
        if self._over:
            return
        result: T | None = None
        error: BaseException | None = None
        try:
            result = self._work(self)
        except BaseException as raised:  # noqa: BLE001 - raised where the future is awaited
            error = raised
        self.end(result, error)

    def end(self, result: T | None, error: BaseException | None) -> None:
        """Tell those who wait."""
        with self._lock:
            was_over, self._over = self._over, True
            waiters, self._waiters = self._waiters, set()
        if not was_over and self._on_over is not None:
            self._on_over(self)
        for future in waiters:
            if not future.set_running_or_notify_cancel():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

    def _leave(self, future: Future[T]) -> None:
        if not future.cancelled():
            return
        with self._lock:
            self._waiters.discard(future)
            if self._waiters or self._over:
                return
            self._over = True
            stop = self._stop
        if self._on_over is not None:
            self._on_over(self)
        if stop is not None:
            stop()


class JobQueue(Generic[T]):
    """Runs jobs on threads of its own, in turns between callers."""

    def __init__(self, max_threads: int, max_waiting: int, waiting: str) -> None:
        """No thread is started yet.

        Args:
            max_threads: how many jobs run at once.
            max_waiting: how many others may wait.
            waiting: says what waits, in the error of a full queue.
        """
        self._waiting_text = waiting
        self._max_threads = max_threads
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._queues: OrderedDict[str, deque[QueuedJob[T]]] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(
        self,
        caller: str,
        work: Callable[[QueuedJob[T]], T],
        on_over: Callable[[QueuedJob[T]], None] | None = None,
    ) -> QueuedJob[T]:
        """Queue a job behind the caller's others.

        Args:
            caller: whose job it is.
            work: see `QueuedJob`.
            on_over: see `QueuedJob`.

        Raises:
            JobQueueFullError: too many jobs wait.
            ClosedError: the queue is closed.
        """
        job = QueuedJob(work, on_over)
        with self._changed:
            if self._closed:
                raise ClosedError("the queue is closed")
            waiting = self._waiting()
            if waiting >= self._max_waiting:
                raise JobQueueFullError(f"{self._max_waiting} {self._waiting_text}, which is the limit")
            self._queues.setdefault(caller, deque()).append(job)
            # Idle threads that were notified before may not have taken their jobs yet.
            if waiting < self._idle or len(self._threads) == self._max_threads:
                self._changed.notify()
            else:
                thread = threading.Thread(target=self._run, name="draftline-queue", daemon=True)
                self._threads.append(thread)
                thread.start()
        return job

    def close(self) -> None:
        """Drop the jobs that wait, and end the threads after the jobs that run. Later jobs are refused."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """`close`, without waiting for the threads. They may call it."""
        with self._changed:
            self._closed = True
            dropped = [job for jobs in self._queues.values() for job in jobs]
            self._queues.clear()
            self._changed.notify_all()
        for job in dropped:
            job.end(None, ClosedError("the queue is closed"))

    def _waiting(self) -> int:
        """How many jobs wait. Those that no caller waits for are dropped first."""
        for caller, jobs in list(self._queues.items()):
            kept = deque(job for job in jobs if not job.is_over)
            if kept:
                self._queues[caller] = kept
            else:
                del self._queues[caller]
        return sum(map(len, self._queues.values()))

    def _run(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            del job  # its text and its result may be large, and the next one may come late

    def _next(self) -> QueuedJob[T] | None:
        """The next job: of the caller whose turn was longest ago."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queues or self._closed)
            self._idle -= 1
            if not self._queues:
                return None
            caller, jobs = self._queues.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._queues[caller] = jobs  # its next turn comes after the others'
            return job
