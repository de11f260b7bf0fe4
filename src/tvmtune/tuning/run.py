"""One tuning run on one log: lock it, read it once, tune, and append every trial."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune.measure.measurer import Measurer
from tvmtune.records import header, shipped
from tvmtune.records.log import Log, LogWriter, refuse_compressed
from tvmtune.tuning.session import TuningSession

if TYPE_CHECKING:
    from tvmtune.tasks.plan import Plan
    from tvmtune.tuning.observer import Observer
    from tvmtune.tuning.options import TuneOptions
    from tvmtune.types import Task, Trial


class TuningRun:
    """A plan, its options and the log that its trials go to.

    The constructor checks what it can without touching the log. Entering the context locks and reads
    a log that exists; one that does not is created by :meth:`tune`, so that a run which fails before
    leaves no empty file.
    """

    def __init__(
        self,
        plan: Plan,
        path: Path,
        options: TuneOptions,
        *,
        tasks: Sequence[Task] | None = None,
        transfer: Sequence[Log] = (),
    ) -> None:
        """``tasks``: those of the plan to tune, all by default; ``transfer``: other logs to learn from.

        Raises :class:`UsageError` for a compressed log, and for a tuner that does not suit the tasks.
        """
        self.plan = plan
        self.path = path
        self.options = options
        self.tasks = list(plan.tasks if tasks is None else tasks)
        self.transfer = transfer
        options.check_tasks(self.tasks)
        refuse_compressed(path)
        self._writer: LogWriter | None = None
        self._history: Log | None = None
        self._files = contextlib.ExitStack()

    def __enter__(self) -> TuningRun:
        """Raises :class:`TvmtuneError` if another process writes to the log, or if it is of another
        network, device or version."""
        if self.path.exists():
            self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def tune(self, observer: Observer | None = None) -> TuningSession:
        """Tune until the budget is spent; earlier trials of the log count towards it.

        Raises :class:`TvmtuneError` if too many trials fail or there are no boards, and its subclass
        :class:`LogLost` if the log is removed, moved or replaced meanwhile.
        """
        began = time.monotonic()
        writer = self._writer or self._open()
        plan, options = self.plan, self.options
        # Boards that could not be asked while planning are those of the log.
        known = plan.device.board or header.boards_of(self._history, plan.device)
        device = replace(plan.device, board=known)
        with Measurer(
            device,
            plan.backend.make_builder(device),
            plan.backend.make_runner(device),
            options.timing,
            wait=options.wait,
            build_cluster=options.build_cluster,
            report=observer.noted if observer else lambda message: None,
        ) as measurer:
            peak = measurer.peak()
            device = replace(device, board=measurer.board())
            prepared = replace(plan.prepared, device=device)
            header.begin(writer, prepared, plan.tasks, self._history, peak)
            session = TuningSession(
                self.tasks,
                device,
                measurer,
                writer,
                options,
                history=self._earlier_trials(),
                others=self.transfer,
                shipped=shipped.for_tuning(plan.device) if options.shipped_records else None,
                peak=peak,
                observer=observer,
                begun=began,
            )
            session.run()
        writer.check()  # what compiles the records reads the log again
        return session

    def _open(self) -> LogWriter:
        """Lock the log, then read it: nobody else can append in between."""
        with contextlib.ExitStack() as undo:
            writer = undo.enter_context(LogWriter(self.path))
            self._history = header.earlier(self.path, self.plan.prepared)
            self._files = undo.pop_all()
        self._writer = writer
        return writer

    def _earlier_trials(self) -> list[Trial]:
        """Trials of this device, without those of templates that have changed."""
        if self._history is None:
            return []
        trials, changed = header.usable(self._history, self.plan.tasks)
        if changed:
            warnings.warn(
                f"the template of {', '.join(changed)} has changed since {self.path} was started; "
                "its earlier trials are ignored",
                stacklevel=3,
            )
        mine = self.plan.device.identity()
        return [trial for trial in trials if trial.device == mine]
