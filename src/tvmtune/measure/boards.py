"""Workers on boards: calls wait in one queue, and each board takes the next as soon as it is free.

It has the interface of :class:`tvmtune.workers.Workers`. Behind it stand *lanes* (lane.py), as many
as the tracker lists boards under the key; lanes come and go while tuning runs. A lane holds one board
at a time and makes one call at a time, in a process of this machine that is killed at the deadline of
what it does, whatever the board does: a client of TVM's RPC may hang for ever.

What went wrong is told apart:

- the board's process died of the call, and its server says so: a ``crash`` of that call;
- the call took too long, and the board's server still answers: a ``timeout`` of that call;
- the board is gone or frozen: the call waits for another board and is not held to blame, unless it
  happens to it a second time.

One lock guards the queue, the list of lanes and what is known of the boards. A call is in the queue, in
the hands of one lane, or settled; a lane takes it only with a board in hand, and always lets go of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.farm import devices, protocol
from tvmtune.farm.lending import OVERHEAD, SLOW_LINE
from tvmtune.farm.protocol import Address, Tracker, Unreachable
from tvmtune.measure.lane import Lane
from tvmtune.types import TensorSpec, product
from tvmtune.workers import Outcome, brief, gather

LOOK = 2.0
"""Seconds between two looks at the tracker."""
IDLE = 5.0
"""Seconds after which a board without work is given back."""
WAIT = 600.0
"""Seconds without any board after which the run is given up."""
PATIENCE = 8.0
"""Seconds without a board after which the user hears of it."""


class NoBoard(TvmtuneError):
    """No board came within the time that the user is willing to wait."""


@dataclass(eq=False)
class Call:
    """A function to be called with a board, and what becomes of it."""

    function: str
    arguments: tuple[Any, ...]
    deadline: float
    """Seconds for the work itself."""
    future: Future[Outcome] = field(default_factory=Future)
    strikes: int = 0
    """Boards that were lost during the call."""

    def limit(self, own: bool) -> float:
        """Seconds for all of it: the upload, too, and where the board is not one of ours (``own``), the
        tensors, which it cannot fill by itself."""
        size = 0
        for argument in self.arguments:
            if isinstance(argument, str):
                with contextlib.suppress(OSError):
                    size += Path(argument).stat().st_size
            elif isinstance(argument, list | tuple) and not own:
                size += sum(_bytes(spec) for spec in argument if isinstance(spec, TensorSpec))
        return self.deadline + size / SLOW_LINE + OVERHEAD

    def settle(self, outcome: Outcome) -> None:
        with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
            self.future.set_result(outcome)


class Boards:
    """Calls functions by name with a board of ``key`` at hand.

    A function is one that :func:`tvmtune.farm.lending.with_board` marks. ``wait``: seconds that
    calls wait while there is no board at all. ``say`` hears of boards that come, go and are waited
    for, in any thread. ``options`` are for :func:`tvmtune.farm.lending.init`. Raises
    :class:`Unreachable` if there is no tracker, or no board of that key.
    """

    def __init__(
        self,
        key: str,
        tracker: Address,
        *,
        wait: float = WAIT,
        say: Callable[[str], None] = lambda message: None,
        options: dict[str, Any] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.key = key
        self.tracker = tracker
        self.wait = wait
        self._say = say
        self.options = dict(options or {})
        self.directory = directory
        self._changed = threading.Condition()
        self._calls: deque[Call] = deque()
        self._lanes: list[Lane] = []
        self._own: set[Address] = set()
        """Boards that tvmtune serve serves."""
        self._listed: set[Address] = set()
        self._unfit: set[Address] = set()
        """Boards that cannot be used, and of which the user knows."""
        self._trouble = ""
        """Why the last board that the tracker lent was of no use."""
        self._waiting = False
        """Whether the user knows that boards are waited for."""
        self._closed = False
        with Tracker(tracker) as line:
            devices.check_known(line, key)
            self._found(line.summary())
        self._watcher = threading.Thread(target=self._watch, name="boards", daemon=True)
        self._watcher.start()

    def submit(self, function: str, call: tuple[Any, ...], deadline: float) -> Future[Outcome]:
        """Have ``function`` called with ``call``; the handle is for :meth:`collect`."""
        wanted = Call(function, call, deadline)
        with self._changed:
            self._calls.append(wanted)
            self._changed.notify_all()
        return wanted.future

    def map(
        self,
        function: str,
        calls: Sequence[tuple[Any, ...]],
        *,
        deadline: float,
        stage: str,
        on_result: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """As :meth:`tvmtune.workers.Workers.map`."""
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
        """As :meth:`tvmtune.workers.Workers.collect`; raises :class:`NoBoard` where none came."""

        def drop() -> None:
            unwanted = set(handles)
            with self._changed:
                self._calls = deque(c for c in self._calls if c.future not in unwanted)

        return gather(handles, lambda handle: handle.result(), on_result, drop)

    def close(self) -> None:
        """End the lanes at once; their boards notice."""
        with self._changed:
            self._closed = True
            lanes, self._lanes = self._lanes, []
            self._changed.notify_all()
        for lane in lanes:
            lane.kill()
        for thread in (*lanes, self._watcher):
            thread.join(timeout=protocol.PATIENCE)

    def __enter__(self) -> Boards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, message: str) -> None:
        """Tell the user. That it cannot be told is no reason to end a thread that work depends on."""
        with contextlib.suppress(Exception):
            self._say(message)

    # For lanes. None of it waits for anything but the lock, unless it says so.

    def wait_for_calls(self, lane: Lane) -> bool:
        """Wait until a call waits for a board; False if the lane is not needed any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or lane not in self._lanes)
            return lane in self._lanes

    def needs(self, lane: Lane) -> bool:
        """Whether calls wait, and the lane should make them."""
        with self._changed:
            return bool(self._calls) and lane in self._lanes

    def keeps(self, lane: Lane) -> bool:
        """Whether the lane is needed still."""
        with self._changed:
            return lane in self._lanes

    def take(self, lane: Lane) -> Call | None:
        """The next call, waiting for :data:`IDLE` seconds; None if there is none, or the lane is not
        needed any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or lane not in self._lanes, IDLE)
            return self._calls.popleft() if self._calls and lane in self._lanes else None

    def again(self, call: Call) -> None:
        """Put a call back that has lost its board: it goes first."""
        with self._changed:
            self._calls.appendleft(call)
            self._changed.notify_all()

    def longest(self) -> float:
        """The most seconds that a call which waits may take on a board of another's."""
        with self._changed:
            return max((call.limit(own=False) for call in self._calls), default=0.0)

    def is_own(self, board: Address) -> bool:
        with self._changed:
            return board in self._own

    def lent(self) -> None:
        """A board was lent, and there is nothing wrong with it."""
        with self._changed:
            self._trouble = ""
            again, self._waiting = self._waiting, False
        if again:
            self.say(f"there is a board '{self.key}' again")

    def refused(self, trouble: str) -> None:
        """A board that the tracker lent could not be used."""
        with self._changed:
            self._trouble = trouble

    def unfit(self, board: Address, trouble: str) -> None:
        """A board cannot be used, and the user should know."""
        with self._changed:
            known, self._unfit = board in self._unfit, self._unfit | {board}
        if not known:
            self.say(f"the board '{self.key}' at {board} cannot be used: {trouble}")

    def lost(self, board: Address, reason: str) -> None:
        """A board was lost during a call."""
        self.say(
            f"the board '{self.key}' at {board} is lost ({reason}): its work waits for another"
        )

    # The watcher's thread.

    def _watch(self) -> None:
        """Have a lane for each board that is listed, and give up when there has been none for long."""
        without: float | None = None
        """Since when calls wait and no lane has a board."""
        while True:
            trouble = ""
            try:
                with Tracker(self.tracker) as line:
                    self._found(line.summary())
            except Unreachable as error:
                trouble = str(error)
            except Exception as error:  # all who wait depend on this thread
                trouble = f"looking for boards at {self.tracker} failed: {brief(error)}"
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                if not self._calls or any(lane.board is not None for lane in self._lanes):
                    without = None
                elif without is None:
                    without = now
                gone = 0.0 if without is None else now - without
                reason = trouble or self._why_none()
                tell = gone > min(PATIENCE, self.wait) and not self._waiting
                self._waiting |= tell
                if gone > self.wait:
                    self._give_up(reason)
                    without = None
            if tell:
                self.say(f"waiting for a board '{self.key}', up to {self.wait:.0f} s: {reason}")
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, LOOK):
                    return

    def _found(self, summary: dict[str, Any]) -> None:
        """Take note of what the tracker lists, and adjust the number of lanes."""
        listed = devices.servers(summary).get(self.key, [])
        own = {a for boards in devices.servers(summary, protocol.OURS).values() for a in boards}
        with self._changed:
            come, gone = set(listed) - self._listed, self._listed - set(listed)
            self._listed, self._own = set(listed), own
            # One lane stays in any case: it notices first when a board is there again.
            wanted = max(1, len(listed))
            while len(self._lanes) < wanted and not self._closed:
                self._lanes.append(Lane(self))
                self._lanes[-1].start()
            idle = [lane for lane in self._lanes if lane.board is None]
            for lane in idle[: max(0, len(self._lanes) - wanted)]:
                self._lanes.remove(lane)
            self._changed.notify_all()
        changes = [f"{board} has come" for board in sorted(come, key=str)]
        changes += [f"{board} has left" for board in sorted(gone, key=str)]
        if changes:
            self.say(f"boards '{self.key}': {', '.join(changes)}; now {len(listed)}")

    def _why_none(self) -> str:
        if not self._listed:
            return f"none is registered with the tracker at {self.tracker}"
        return self._trouble or "all of them are in use, or do not answer"

    def _give_up(self, reason: str) -> None:
        error = NoBoard(
            f"no board '{self.key}' was to be had for {self.wait:.0f} s: {reason.rstrip('.')}. See "
            "tvmtune devices; --wait gives boards more time to come back."
        )
        while self._calls:
            with contextlib.suppress(InvalidStateError):
                self._calls.popleft().future.set_exception(error)


def _bytes(spec: TensorSpec) -> int:
    import numpy as np

    return product(spec.shape) * np.dtype(spec.dtype).itemsize
