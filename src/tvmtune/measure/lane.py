"""One board at a time: a thread that borrows it, makes calls with it, and notices when it is gone."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtune.farm import protocol
from tvmtune.farm.lending import CONNECT, INIT, OVERHEAD, RELEASE
from tvmtune.farm.protocol import Address, Tracker, Unreachable
from tvmtune.workers import Outcome, Worker

if TYPE_CHECKING:
    from tvmtune.measure.boards import Boards, Call

STARTING = 60.0
"""Seconds for a process of this machine, the first of which imports TVM."""
CONNECTING = 30.0
"""Seconds for a session to begin; slow boards need some for the fork."""
RETRY = 1.0
"""Seconds to pause after a board or the tracker could not be reached."""
UNFIT = 10.0
"""Seconds to pause after a board that cannot be used: the tracker may well lend it again."""
RECYCLE = 200
"""Calls after which session and process begin anew: both sides grow with what they load."""
TURN = 60.0
"""Seconds after which a board is given back although there is work: another run may wait for it."""
MARGIN = 5.0
"""Seconds by which this side waits longer than a server that ends the session by itself."""
ASK = 60.0
"""Seconds after which the tracker is asked anew for a board: it may have gone without a word."""
STRIKES = 2
"""Boards that a call may take down before it is to blame."""


@dataclass(frozen=True)
class _Session:
    board: Address
    limit: float = 0.0
    """Seconds after which its server ends it; 0 for a server of ours, which notices that a client has
    left. Another may be stuck with an endless call for ever: it serves one call a session."""


class Lane(threading.Thread):
    """Serves ``boards`` until it is not needed any more. Only its own thread touches its session."""

    def __init__(self, boards: Boards) -> None:
        super().__init__(name="lane", daemon=True)
        self.board: Address | None = None
        """The board that it has been lent, set while the session lasts."""
        self._boards = boards
        self._worker = Worker(init=INIT, options=boards.options, directory=boards.directory)
        self._calls = 0
        """With this process."""

    def run(self) -> None:
        boards = self._boards
        try:
            while boards.wait_for_calls(self):
                try:
                    session = self._borrow()
                except Exception as error:  # a lane that ends is a board less
                    self._drop()
                    self._refused(f"{type(error).__name__}: {error}")
                    continue
                if session is None:
                    continue
                end = time.monotonic() + TURN
                while self.board is not None and (call := boards.take(self)) is not None:
                    if not self._make(call, session) or time.monotonic() > end:
                        break
                self._give_back()
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process; for any thread."""
        self._worker.close()

    def _borrow(self) -> _Session | None:
        """Have a board, with a session open; None if there is none now."""
        boards = self._boards
        # The process first: no board should wait until it has started.
        if not self._worker.call(RELEASE, (), STARTING).ok:
            self._drop()
            self._refused("this machine could not start a process")
            return None
        try:
            with Tracker(boards.tracker) as line:
                found = line.request(boards.key, ASK, wanted=lambda: boards.needs(self))
        except Unreachable:  # which the boards' watcher sees and says by itself
            self._pause(RETRY)
            return None
        if found is None:
            return None
        board, match = found
        session = _Session(board)
        if not boards.is_own(board):
            session = _Session(board, boards.longest())
        outcome = self._worker.call(CONNECT, (str(board), match, session.limit), CONNECTING)
        if outcome.stage == "timeout":
            self._drop()
            self._refused(f"the board at {board} does not answer")
            return None
        if not outcome.ok:
            self._drop()
            self._refused(outcome.message)
            return None
        if outcome.value:
            self._worker.call(RELEASE, (), OVERHEAD)
            boards.unfit(board, str(outcome.value))
            self._refused(f"the board at {board} cannot be used: {outcome.value}", UNFIT)
            return None
        self.board = board
        boards.lent()
        return session

    def _refused(self, trouble: str, pause: float = RETRY) -> None:
        self._boards.refused(trouble)
        self._pause(pause)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._boards.needs(self):
            time.sleep(0.1)

    def _make(self, call: Call, session: _Session) -> bool:
        """Make a call and settle it, or put it back where the board was lost; whether the session is
        good for another one."""
        own = session.limit == 0.0
        limit = call.limit(own)
        if not own and limit > session.limit:
            self._boards.again(call)
            return False
        self._calls += 1
        verdict: Outcome | None
        try:
            deadline = limit + (0.0 if own else MARGIN)
            outcome = self._worker.call(call.function, call.arguments, deadline)
            verdict = self._verdict(call, session.board, outcome)
        except Exception as error:  # somebody waits for an answer
            self._drop()
            verdict = Outcome(stage="run", message=f"{type(error).__name__}: {error}")
        if verdict is None:
            self._boards.again(call)
        else:
            call.settle(verdict)
        return own and self._calls < RECYCLE

    def _verdict(self, call: Call, board: Address, outcome: Outcome) -> Outcome | None:
        """What became of a call, or None if it has to be made again."""
        killed = Outcome(stage="timeout", message=f"killed after {call.deadline:g} s (run)")
        if outcome.stage == "run":  # raised before the board was asked
            return outcome
        if outcome.ok:
            kind, value = outcome.value
            if kind == "value":
                return Outcome(value=value)
            if kind == "run":
                return Outcome(stage="run", message=value)
            self._drop()
            if kind == "crash":
                return Outcome(stage="crash", message=value)
            if kind == "timeout":
                return killed
            reason = str(value)
        elif outcome.stage == "timeout":
            self._drop()
            if protocol.is_alive(board):
                return killed
            reason = "it does not answer"
        else:
            self._drop()
            if not self._boards.keeps(self):
                return outcome  # it was killed by the end of the run
            reason = outcome.message
        self._boards.lost(board, reason)
        call.strikes += 1
        if call.strikes < STRIKES:
            return None
        return Outcome(
            stage="crash", message=f"it took a board down {call.strikes} times; the last: {reason}"
        )

    def _give_back(self) -> None:
        if self._calls >= RECYCLE:
            self._drop()
        elif self.board is not None:
            self.board = None
            if not self._worker.call(RELEASE, (), OVERHEAD).ok:
                self._drop()

    def _drop(self) -> None:
        """The session, or the process, is of no use any more."""
        self.board = None
        self._calls = 0
        self._worker.kill()
