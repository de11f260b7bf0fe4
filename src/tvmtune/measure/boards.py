"""Workers on boards: calls wait in one queue, and each board takes the next as soon as it is free.

It has the interface of :class:`tvmtune.workers.Workers`. Behind it stand *lanes*, as many as the
tracker lists boards under the key; lanes come and go while tuning runs. A lane is a process of this
machine that holds a session with one board (lending.py) and is killed at the deadline of what it does,
whatever the board does: a client of TVM's RPC may hang for ever.

What went wrong is told apart:

- the board's process died of the call, and its server says so: a ``crash`` of that call;
- the call took too long, and the board's server still answers: a ``timeout`` of that call;
- the board is gone or frozen: the call waits for another board and is not held to blame, unless it
  happens to it a second time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.farm import devices, protocol
from tvmtune.farm.lending import ENSURE, INIT, OVERHEAD, RELEASE, SLOW_LINE
from tvmtune.farm.protocol import Address, Tracker, Unreachable
from tvmtune.workers import Outcome, Workers

LOOK = 2.0
"""Seconds between two looks at the tracker."""
IDLE = 5.0
"""Seconds after which a lane without work gives its board back."""
WAIT = 600.0
"""Seconds without any board after which the run is given up."""
PATIENCE = 15.0
"""Seconds without a free board after which the user hears of it."""
STRIKES = 2
"""Boards that a call may take down before it is to blame."""

class NoBoard(TvmtuneError):
    """No board came within the time that the user is willing to wait."""


@dataclass
class _Call:
    function: str
    arguments: tuple[Any, ...]
    deadline: float
    upload: int
    """Bytes that go to the board."""
    future: Future[Outcome]
    strikes: int = 0


class Boards:
    """Calls functions by name with a board of ``key`` at hand. ``say`` hears of boards that come, go and
    are waited for.

    A function returns what :func:`tvmtune.farm.lending.with_board` says. Raises :class:`Unreachable` if there is no
    tracker, or no board of that key.
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
        self.say = say
        self._options = dict(options or {})
        self._directory = directory
        self._calls: deque[_Call] = deque()
        self._lanes: list[_Lane] = []
        self._changed = threading.Condition()
        self._closed = False
        self._without = time.monotonic()
        """Since when no board has been at work."""
        self._told = False
        with Tracker(tracker) as line:
            devices.check_known(line, key)
            self._grow(len(devices.servers(line.summary()).get(key, ())))
        self._watcher = threading.Thread(target=self._watch, name="boards", daemon=True)
        self._watcher.start()

    def submit(self, function: str, call: tuple[Any, ...], deadline: float) -> Future[Outcome]:
        """Have ``function`` called with ``call``; the handle is for :meth:`collect`."""
        wanted = _Call(function, call, deadline, _size(call), Future())
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
        outcomes: list[Outcome] = []
        try:
            for index, handle in enumerate(handles):
                outcomes.append(handle.result())
                if on_result is not None:
                    on_result(index, outcomes[-1])
        except BaseException:
            with self._changed:
                unwanted = set(map(id, handles))
                self._calls = deque(c for c in self._calls if id(c.future) not in unwanted)
            raise
        return outcomes

    def close(self) -> None:
        """End the lanes at once; their boards notice."""
        with self._changed:
            self._closed = True
            lanes, self._lanes = self._lanes, []
            self._changed.notify_all()
        for lane in lanes:
            lane.close()
        self._watcher.join(timeout=protocol.PATIENCE)

    def __enter__(self) -> Boards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_call(self, lane: _Lane) -> _Call | None:
        """For lanes: the next call, or None if there was none for :data:`IDLE` seconds or the lane is
        not needed any more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._calls or self._closed or lane not in self._lanes, timeout=IDLE
            )
            if self._closed or lane not in self._lanes or not self._calls:
                return None
            return self._calls.popleft()

    def again(self, call: _Call) -> None:
        """For lanes: a call that lost its board goes first."""
        with self._changed:
            self._calls.appendleft(call)
            self._changed.notify_all()

    def has_board(self) -> None:
        """For lanes: a board was lent."""
        with self._changed:
            self._without = time.monotonic()
            if self._told:
                self._told = False
                self.say(f"a board '{self.key}' is there again")

    def _watch(self) -> None:
        """Have a lane for each board that is listed, and give up when there has been none for long."""
        trouble = ""
        while not self._closed:
            count = 0
            try:
                with Tracker(self.tracker) as line:
                    count = len(devices.servers(line.summary()).get(self.key, ()))
                trouble = ""
            except Unreachable as error:
                trouble = str(error)
            with self._changed:
                self._grow(count)
                busy = any(lane.holds for lane in self._lanes)
                if busy or not self._calls:
                    self._without = time.monotonic()
                without = time.monotonic() - self._without
                if without > PATIENCE and not self._told:
                    self._told = True
                    why = trouble or (
                        f"all boards '{self.key}' are in use"
                        if count
                        else f"no board '{self.key}' is registered with the tracker at {self.tracker}"
                    )
                    self.say(f"waiting for a board, up to {self.wait:.0f} s: {why}")
                if without > self.wait:
                    self._give_up(trouble)
                self._changed.wait_for(lambda: self._closed, timeout=LOOK)

    def _grow(self, count: int) -> None:
        """Adjust the number of lanes; those that hold a board end when they are idle."""
        while len(self._lanes) < count:
            lane = _Lane(self)
            self._lanes.append(lane)
            lane.start()
        for lane in [lane for lane in self._lanes if not lane.holds][: len(self._lanes) - count]:
            if len(self._lanes) > max(1, count):
                self._lanes.remove(lane)
        self._changed.notify_all()

    def _give_up(self, trouble: str) -> None:
        error = NoBoard(
            trouble
            or f"no board '{self.key}' could be had for {self.wait:.0f} s. See tvmtune devices; wait "
            "longer with --wait."
        )
        while self._calls:
            self._calls.popleft().future.set_exception(error)


class _Lane(threading.Thread):
    """One board at a time, in a process of its own."""

    def __init__(self, boards: Boards) -> None:
        super().__init__(name="lane", daemon=True)
        self._boards = boards
        self._workers: Workers | None = None
        self.holds: Address | None = None
        """The board that it has been lent."""

    def run(self) -> None:
        while not self._boards._closed:
            call = self._boards.next_call(self)
            if call is None:
                self._release()
                if self._boards._closed or self not in self._boards._lanes:
                    break
                continue
            try:
                outcome = self._do(call)
            except Exception as error:  # a lane must not end with a call in its hands
                outcome = Outcome(stage="run", message=f"{type(error).__name__}: {error}")
            if outcome is None:
                self._boards.again(call)
            else:
                with contextlib.suppress(Exception):  # nobody waits for it any more
                    call.future.set_result(outcome)
        self.close()

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()

    def _do(self, call: _Call) -> Outcome | None:
        """What became of the call; None if it has to be made again."""
        if not self._borrow():
            return None
        assert self.holds is not None
        limit = call.deadline + call.upload / SLOW_LINE + OVERHEAD
        outcome = self._in_process(call.function, call.arguments, limit)
        if outcome.ok:
            kind, value = outcome.value
            if kind == "value":
                return Outcome(value=value)
            self._lost() if kind in ("crash", "lost") else None
            if kind != "lost":
                return Outcome(stage=kind, message=str(value))
            reason = str(value)
        elif outcome.stage == "timeout":
            there = protocol.is_alive(self.holds)
            self._lost()
            if there:
                return Outcome(stage="timeout", message=f"killed after {call.deadline:g} s (run)")
            reason = "it does not answer any more"
        else:
            self._lost()
            return outcome
        call.strikes += 1
        if call.strikes >= STRIKES:
            return Outcome(
                stage="crash", message=f"it took a board down {STRIKES} times; the last: {reason}"
            )
        return None

    def _borrow(self) -> bool:
        """Have a board; False if none is to be had now."""
        if self.holds is not None:
            return True
        arguments = (str(self._boards.tracker), self._boards.key, LOOK)
        outcome = self._in_process(ENSURE, arguments, LOOK + OVERHEAD)
        if not outcome.ok or outcome.value is None:
            self._lost()
            return False
        self.holds = Address.parse(outcome.value)
        self._boards.has_board()
        return True

    def _release(self) -> None:
        if self.holds is not None:
            self._in_process(RELEASE, (), OVERHEAD)
            self.holds = None

    def _lost(self) -> None:
        """The session is of no use any more: begin anew with a fresh process."""
        self.holds = None
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def _in_process(self, function: str, arguments: tuple[Any, ...], limit: float) -> Outcome:
        if self._workers is None:
            self._workers = Workers(
                1,
                init=INIT,
                options=self._boards._options,
                recycle=0,
                directory=self._boards._directory,
            )
        return self._workers.map(function, [arguments], deadline=limit, stage="run")[0]


def _size(call: tuple[Any, ...]) -> int:
    """Bytes of the library that a call begins with, and of its arguments."""
    with contextlib.suppress(OSError, TypeError):
        return Path(call[0]).stat().st_size
    return 0
