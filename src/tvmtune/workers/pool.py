"""A pool of workers that take calls from one queue."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tvmtune.machine import faults
from tvmtune.workers.outcome import Outcome, brief, gather
from tvmtune.workers.worker import END_TIMEOUT, Worker


@dataclass(eq=False)
class _Call:
    function: str
    arguments: tuple[Any, ...]
    deadline: float
    future: Future[Outcome] = field(default_factory=Future)


class Workers:
    """A pool of at most ``slots`` processes that call functions by name, each driven by a thread.

    ``init`` is called in each new worker with ``options``. A worker is replaced after ``recycle``
    calls, because TVM's processes grow. ``directory``: see :class:`Worker`.
    """

    def __init__(
        self,
        slots: int,
        *,
        init: str | None = None,
        options: dict[str, Any] | None = None,
        recycle: int = 200,
        directory: Path | None = None,
    ) -> None:
        self._recycle = recycle
        self._changed = threading.Condition()
        """Guards the queues, the number of idle threads and the end."""
        self._queue: deque[_Call] = deque()
        self._urgent: deque[_Call] = deque()
        """Calls that are taken before those of the queue."""
        self._idle = 0
        self._closed = False
        self._workers = [
            Worker(init=init, options=options, directory=directory) for _ in range(slots)
        ]
        self._threads: list[threading.Thread] = []
        """Of the first workers; the others have not been needed yet."""

    def submit(
        self, function: str, call: tuple[Any, ...], deadline: float, *, urgent: bool = False
    ) -> Future[Outcome]:
        """Queue ``function(*call)``; the handle is for :meth:`collect`. ``deadline`` counts from when a
        worker takes the call; it takes an ``urgent`` one before those that are not."""
        queued = _Call(function, call, deadline)
        queue = self._urgent if urgent else self._queue
        with self._changed:
            if self._closed:
                raise RuntimeError("the workers are closed")
            queue.append(queued)
            waiting = len(self._urgent) + len(self._queue)
            if waiting > self._idle and len(self._threads) < len(self._workers):
                worker = self._workers[len(self._threads)]
                thread = threading.Thread(
                    target=self._serve, args=(worker,), name="worker", daemon=True
                )
                try:
                    thread.start()
                    self._threads.append(thread)
                except RuntimeError as error:
                    if not self._threads:
                        queue.remove(queued)
                        fault = faults.of_error(error) or "processes"
                        text = f"no worker could be started: {error}"
                        queued.future.set_result(Outcome(stage="crash", message=text, fault=fault))
            self._changed.notify()
        return queued.future

    def map(
        self,
        function: str,
        calls: Sequence[tuple[Any, ...]],
        *,
        deadline: float,
        stage: str,
        on_result: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """Call ``function`` once per tuple of arguments; results in order.

        ``on_result`` receives each result in order, as soon as it and all before it are there.
        """
        handles = [self.submit(function, call, deadline) for call in calls]
        return self.collect(handles, deadline=deadline, stage=stage, on_result=on_result)

    def collect(
        self,
        handles: Sequence[Future[Outcome]],
        *,
        deadline: float,
        stage: str,
        on_result: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """The outcomes of calls that were submitted with ``deadline``, in order.

        A call that took longer than ``deadline`` seconds was killed and comes back as ``timeout``;
        one whose process died, as ``crash``; one that raised, as ``stage``. A worker that dies while
        it is idle costs no call.
        """

        def drop() -> None:
            for future in handles:
                future.cancel()

        def wait(future: Future[Outcome]) -> Outcome:
            try:
                outcome = future.result()
            except CancelledError:
                return Outcome(stage="crash", message="cancelled")
            if outcome.stage == "run":
                return replace(outcome, stage=stage)
            if outcome.stage == "timeout":
                return replace(outcome, message=f"{outcome.message} ({stage})")
            return outcome

        return gather(handles, wait, on_result, drop)

    def close(self) -> None:
        """Kill the workers at once; nothing they hold is worth waiting for."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            queued = [*self._urgent, *self._queue]
            self._urgent.clear()
            self._queue.clear()
            self._changed.notify_all()
        for call in queued:
            call.future.cancel()
        for worker in self._workers:
            worker.stop()
        end = time.monotonic() + END_TIMEOUT
        for worker in self._workers:
            worker.wait_dead(end)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, worker: Worker) -> None:
        """Make calls with ``worker`` until the pool is closed."""
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._urgent or self._queue or self._closed)
                self._idle -= 1
                if self._closed:
                    return
                call = (self._urgent or self._queue).popleft()
            if not call.future.set_running_or_notify_cancel():
                continue
            try:
                outcome = worker.call(call.function, call.arguments, call.deadline)
            except Exception as error:  # the caller waits for an answer
                worker.kill()
                outcome = Outcome(stage="run", message=brief(error), fault=faults.of_error(error))
            with contextlib.suppress(InvalidStateError):
                call.future.set_result(outcome)
            if worker.calls >= self._recycle:
                worker.kill()
