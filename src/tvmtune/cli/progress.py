"""Progress of a tuning session on stderr: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.cli import messages
from tvmtune.cli.output import bar, clock, console, counted, milliseconds
from tvmtune.tuning.failures import by_stage
from tvmtune.tuning.observer import Observer, SessionView

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tvmtune.tuning.state import ImplementationState, TaskState
    from tvmtune.types import Trial


def observer(verbose: bool) -> ProgressObserver:
    """The observer for this stderr."""
    if not messages.shown(messages.INFO):
        return Silent()
    terminal = console(stderr=True).is_terminal
    return LiveTable() if terminal and not verbose else PlainLines(verbose)


class ProgressObserver(Observer):
    """Keeps the session, and prints messages for the user."""

    def __init__(self) -> None:
        self.session: SessionView | None = None

    def started(self, session: SessionView) -> None:
        self.session = session

    def print(self, text: str) -> None:
        raise NotImplementedError

    def drifted(self, slow: bool, slowdown: float) -> None:
        if slow:
            self.print(
                f"warning: the machine is {slowdown - 1:.0%} slower than before; measurements are "
                "marked in the log until it recovers"
            )
        else:
            self.print("the machine has recovered its speed")

    def noted(self, message: str) -> None:
        self.print(f"note: {message}")


class Silent(ProgressObserver):
    """Warnings only."""

    def print(self, text: str) -> None:
        if text.startswith("warning"):
            messages.warning(text)


class PlainLines(ProgressObserver):
    """A line per round; with ``verbose`` also a line per trial, with its configuration."""

    def __init__(self, verbose: bool) -> None:
        super().__init__()
        self.verbose = verbose
        self._state = ""

    def print(self, text: str) -> None:
        _line(f"  {text}")

    def started(self, session: SessionView) -> None:
        super().started(session)
        if session.resumed:
            verb = "is" if session.resumed == 1 else "are"
            trials = counted(session.resumed, "trial")
            _line(f"resuming: {trials} of earlier runs {verb} in the log")
        fresh = sum(
            1 for state in session.states for impl in state.implementations if not impl.trials
        )
        if fresh:
            tasks = counted(len(session.states), "task")
            _line(f"{tasks}; first {counted(fresh, 'default schedule')}")

    def transferred(self, session: SessionView) -> None:
        _line(_transferred(session))

    def proposing(self, state: TaskState, impl: ImplementationState) -> None:
        assert self.session is not None
        known = (
            f"{counted(self.session.total, 'trial')}, "
            f"estimate {milliseconds(self.session.estimate())}; "
        )
        # A round may be proposed before the last one is measured.
        changed, self._state = known if known != self._state else "", known
        _line(
            f"[{clock(self.session.elapsed)}] {changed}next: {state.task.name} "
            f"({impl.implementation.name}), {counted(state.count, 'trial')}, "
            f"best {milliseconds(state.best)}"
            + (f", {state.gflops:.0f} GFLOPS" if state.gflops else "")
        )

    def trial(self, state: TaskState, trial: Trial) -> None:
        if self.verbose:
            from tvmtune.spaces.knobs import configuration

            result = (
                f"{trial.error['stage']}: {trial.error['message']}"
                if trial.error
                else milliseconds(trial.latency)
            )
            _line(
                f"  {state.task.name} {trial.implementation} {trial.candidate}: {result} "
                f"{configuration(trial.trace)}"
            )

    def remeasured(self, state: TaskState, trial: Trial, before: float) -> None:
        if self.verbose:
            _line(
                f"  {state.task.name} {trial.candidate}, timed again: {milliseconds(trial.latency)} "
                f"instead of {milliseconds(before)}"
            )

    def verdict(self, state: TaskState, trial: Trial) -> None:
        if trial.verified is False and trial.error:
            _line(f"  {state.task.name}: wrong output, demoted: {trial.error['message']}")

    def skipped(self, state: TaskState) -> None:
        _line(f"  {state.task.name} gets no more trials: {state.skipped}")


class LiveTable(ProgressObserver):
    """A table of all tasks: trials, best latency, rate, share of the total, failures."""

    def __init__(self) -> None:
        from rich.live import Live

        super().__init__()
        self.next: TaskState | None = None
        self._live = Live(
            console=console(stderr=True),
            get_renderable=self._render,
            refresh_per_second=2,
            transient=True,  # the summary prints the table again
        )

    def print(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def started(self, session: SessionView) -> None:
        super().started(session)
        self._live.start()

    def proposing(self, state: TaskState, impl: ImplementationState) -> None:
        self.next = state

    def finished(self, session: SessionView) -> None:
        self.next = None
        self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        if self.session is None:
            return Text("")
        session = self.session
        done, total, left = _advance(session)
        rate = session.new / session.elapsed * 60 if session.elapsed > 1 else 0.0
        text = (
            f"{counted(session.total, 'trial')}  {rate:.0f}/min  "
            f"estimate {milliseconds(session.estimate())}  {clock(session.elapsed)} elapsed"
        )
        budget = bar()
        description = text + (f", {clock(left)} left" if left is not None else "")
        budget.update(budget.add_task(description, total=total), completed=done)
        size = self._live.console.size
        table = task_table(session, self.next, width=size.width, height=size.height)
        return Group(table, budget)


def task_table(
    session: SessionView, following: TaskState | None = None, *, width: int, height: int = 0
) -> Any:
    """A table of the session's tasks for a terminal of ``width`` columns; with ``height``, only as many
    rows as fit, heaviest tasks first."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    # the numbers take some 68 columns and matter more than the end of a name
    table.add_column(
        "task", overflow="ellipsis", no_wrap=True, max_width=max(8, min(38, width - 70))
    )
    rate = ("GFLOPS", "of peak") if session.peak else ("GFLOPS",)
    for column in ("weight", "trials", "best", *rate, "share", "by", "failures"):
        table.add_column(column, justify="left" if column == "by" else "right", no_wrap=True)
    table.title = f"{session.device.model}, {session.device.threads} threads"
    if session.peak:
        table.title += f", peak {session.peak:.0f} GFLOPS (float32)"
        table.caption = "rates count the direct algorithm's operations: others may exceed the peak"
    total = session.estimate()
    states = list(session.states)
    room = max(4, height - 6) if height else len(states)
    if len(states) > room:
        states.sort(key=lambda s: -s.task.weight * (s.best if s.best < float("inf") else 1.0))
        states = states[:room]
    for state in states:
        known = state.best < float("inf")
        share = state.task.weight * state.best / total if known and total < float("inf") else None
        incumbent = state.incumbent
        table.add_row(
            f"{'>' if state is following else ' '}{state.task.index:3} {state.task.name}",
            str(state.task.weight),
            str(state.count),
            milliseconds(state.best),
            f"{state.gflops:.0f}" if state.gflops else "-",
            *(
                [f"{state.gflops / session.peak:.0%}" if state.gflops else "-"]
                if session.peak
                else []
            ),
            f"{share:.1%}" if share is not None else "-",
            incumbent.implementation if incumbent else "-",
            " ".join(f"{n} {stage}" for stage, (n, _) in by_stage(state.trials).items()) or "0",
        )
    hidden = len(session.states) - len(states)
    if hidden:
        table.caption = f"and {hidden} lighter tasks; {table.caption or ''}".rstrip("; ")
    return table


def summary(session: SessionView) -> None:
    """Print a summary to stderr: the final table, and failures with their first messages."""
    out = console(stderr=True)
    out.print(task_table(session, width=out.width))
    rate = session.new / session.elapsed * 60 if session.elapsed > 1 else 0.0
    out.print(
        f"{counted(session.new, 'trial')} in {clock(session.elapsed)} ({rate:.0f} a minute), "
        f"{session.total:,} in total; stopped because {session.stopped_because or 'of an error'}. "
        f"Estimate: {milliseconds(session.estimate())}."
    )
    for state in session.states:
        if state.skipped and state.best == float("inf"):
            out.print(f"{state.task.name} has no valid trial: {state.skipped}", markup=False)
    if session.others:
        out.print(_transferred(session))
    for line in _unverified(session):
        out.print(line, markup=False)
    for line in _speed_notes(session):
        out.print(line, highlight=False)
    for stage, (count, message) in by_stage(t for s in session.states for t in s.trials).items():
        out.print(f"{count} failed at {stage}; the first: {message}", markup=False)


def _advance(session: SessionView) -> tuple[float, float, float | None]:
    """(done, total, seconds left or None) of the budget that will be spent first."""
    parts: list[tuple[float, float, float]] = []
    budget = session.budget
    limits = [most for most in (budget.trials, session.space_size) if most is not None]
    if limits:
        wanted = max(1, min(limits) - session.resumed)
        each = session.elapsed / session.new if session.new else 0.0
        parts.append((session.new, wanted, each * (wanted - session.new)))
    if budget.seconds is not None:
        parts.append((session.elapsed, budget.seconds, budget.seconds - session.elapsed))
    if not parts:
        return 0.0, 1.0, None
    done, total, left = max(parts, key=lambda p: p[0] / p[1])
    return done, total, max(0.0, left)


def _speed_notes(session: SessionView) -> list[str]:
    """How the machine's speed varied, and which records that affects."""
    lines = []
    if session.speed_spread >= 0.005:  # not 0%
        lines.append(f"the machine's speed varied by {session.speed_spread:.0%}")
    if session.slow_trials:
        marked = sum(1 for s in session.states if s.incumbent and "drift" in s.incumbent.extra)
        lines.append(
            f"{session.slow_trials} trials were measured while it was slow, including {marked} of the "
            "best records"
        )
    return lines


def _unverified(session: SessionView) -> list[str]:
    """Which tasks' best candidates could not be checked, and what is shipped instead."""
    replaced: list[str] = []
    bare: list[str] = []
    reason = ""
    for state in session.states:
        trial = state.incumbent
        if trial is None or trial.verified:
            continue
        reason = reason or session.unverified.get(trial.candidate, "")
        right = any(t.ok and t.verified for t in state.trials)
        (replaced if right else bare).append(state.task.name)
    why = f" ({reason})" if reason else ""
    lines = []
    if replaced:
        lines.append(
            f"the best candidate of {', '.join(replaced)} could not be checked{why}: the fastest "
            "verified one is used instead"
        )
    if bare:
        lines.append(
            f"the outputs of {', '.join(bare)} could not be checked{why}: they are used unverified; "
            "the same command checks them again"
        )
    return lines


def _transferred(session: SessionView) -> str:
    return (
        f"other logs: {session.transferred_records} records of the same workloads transferred, "
        f"{session.transferred_samples} trials used to train the cost model"
    )


def _line(text: str) -> None:
    messages.info(text)
