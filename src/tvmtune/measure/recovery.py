"""What to do about faults of the environment while candidates are measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tvmtune.errors import TvmtuneError
from tvmtune.machine import faults, interrupts
from tvmtune.machine.faults import REMEDIES, Fault
from tvmtune.workers import Outcome

PATIENCE = 600.0
"""Seconds that a fault may last before the run ends."""
PAUSES = (1.0, 30.0)
"""Seconds of the first pause, which doubles, and of the longest."""
ALONE = (5.0, 25.0)
"""Seconds of the pauses before a candidate that may itself be to blame is tried alone: time for others
to free memory. It is blamed if all these tries fail."""
MAY_BE_ITS_OWN: tuple[Fault, ...] = ("memory", "board")
"""Faults that a candidate can cause: it needs more memory than there is, or takes its board down."""
LASTING: tuple[Fault, ...] = ("file size",)
"""Faults that no waiting ends: a limit of this process."""
SUSPECT = ("build", "run", "crash")
"""Stages at which a failure may be the environment's although its message does not say so."""


class EnvironmentFault(TvmtuneError):
    """The environment lacks something that any candidate needs, and that does not end."""


class Recovery:
    """Repeats calls that failed for a fault of the environment, so that none is held against a
    candidate.

    A call is repeated after a pause, while nothing else runs (``rest`` waits for that), once a file can
    be written to ``directory``, opened, and a thread started. If it meets a fault again and again for
    :data:`PATIENCE` seconds, the run ends with :class:`EnvironmentFault`.

    Lack of memory, and boards that are lost, may be the candidate's own doing: it is blamed if the
    same happens again after each pause of :data:`ALONE`, while nothing else is built or run, so that
    candidates which merely ran beside it are not.
    """

    def __init__(
        self, directory: Path, report: Callable[[str], None], rest: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._report = report
        self._rest = rest

    def blame(self, outcome: Outcome) -> Outcome:
        """The outcome with the fault that there is now, if it failed without naming one: a process that
        cannot write often dies without a word."""
        if outcome.fault or outcome.stage not in SUSPECT:
            return outcome
        fault, message = faults.present(self._directory)
        if not fault:
            return outcome
        return replace(outcome, fault=fault, message=f"{outcome.message} ({message})")

    def repeat(self, call: Callable[[], Outcome], outcome: Outcome) -> Outcome:
        """The outcome of ``call``, whose first one was ``outcome``, once it meets no fault; or with a
        fault, if the call may have caused it and did so alone, too."""
        pauses = _Pauses(self._directory, self._report)
        tries = 0
        """Tries that met the same fault as the one before."""
        while outcome.fault:
            alone = ALONE if outcome.fault in MAY_BE_ITS_OWN else ()
            if alone and tries >= len(alone):
                return replace(outcome, message=f"{outcome.message} (also alone, {tries} times)")
            pauses.wait(outcome.fault, outcome.message, alone[tries] if alone else None)
            self._rest()
            again = self.blame(call())
            tries = tries + 1 if again.fault == outcome.fault else 0
            outcome = again
        return outcome

    def persist(self, write: Callable[[], None]) -> None:
        """Write a file, after a pause if there is a fault."""
        pauses = _Pauses(self._directory, self._report)
        while True:
            try:
                return write()
            except (OSError, TvmtuneError) as error:
                fault = faults.of_error(error)
                if not fault:
                    raise
                pauses.wait(fault, str(error))


class _Pauses:
    """The pauses between the tries of one piece of work, for :data:`PATIENCE` seconds from now."""

    def __init__(self, directory: Path, report: Callable[[str], None]) -> None:
        self._directory = directory
        self._report = report
        self._end = time.monotonic() + PATIENCE
        self._next, self._longest = PAUSES

    def wait(self, fault: Fault, message: str, seconds: float | None = None) -> None:
        """Pause for ``seconds``, by default twice as long as the last time, then wait until no fault is
        present. Raises :class:`EnvironmentFault` once the time is over."""
        if fault in LASTING:
            raise _end(fault, message)
        if seconds is None:
            seconds = self._next
            self._next = min(2 * self._next, self._longest)
        left = max(0.0, self._end - time.monotonic())
        self._report(f"measuring pauses, for up to {left:.0f} s: {message}")
        while True:
            _sleep(min(seconds, max(0.0, self._end - time.monotonic())))
            now, text = faults.present(self._directory)
            if time.monotonic() >= self._end:
                raise _end(now or fault, text or message)
            if not now:
                return


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        interrupts.check()
        time.sleep(min(0.2, left))


def _end(fault: Fault, message: str) -> EnvironmentFault:
    remedy = REMEDIES[fault]
    return EnvironmentFault(
        f"tuning was given up, because the environment does not allow it: {message.rstrip('.')}. "
        f"{remedy[0].upper()}{remedy[1:]}, then run the same command again."
    )
