"""Incumbents are timed again and checked; drift of the machine's speed is detected."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuning import small
from tvmtune.cli import progress
from tvmtune.measure.measurer import Measurement
from tvmtune.passes.workload_keys import structure
from tvmtune.records.best import best_of
from tvmtune.records.log import read_log
from tvmtune.tuning import drift as drifts
from tvmtune.tuning import incumbents
from tvmtune.tuning import session as sessions
from tvmtune.tuning.clock import Clock
from tvmtune.tuning.drift import READINGS_TO_RESET, Drift, Reading
from tvmtune.tuning.session import TuningSession
from tvmtune.types import Trial


@pytest.fixture(autouse=True)
def unbounded(monkeypatch):
    """No limit on the time for timing incumbents again."""
    monkeypatch.setattr(incumbents, "CONFIRM_SHARE", float("inf"))


class Recorder(small.Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.again: list[tuple[str, float, float]] = []
        self.slow: list[bool] = []

    def remeasured(self, state: Any, trial: Any, before: float) -> None:
        self.again.append((trial.candidate, before, trial.latency))

    def drifted(self, slow: bool, slowdown: float) -> None:
        self.slow.append(slow)


def lines(log: Path, kind: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return [r for r in records if r["type"] == kind]


def slower(session: TuningSession, factor: Callable[[Trial], float]) -> None:
    """Candidates that are timed again take ``factor`` times as long as before."""

    def remeasure(implementation: Any, trace: Any) -> Measurement:
        trial = next(t for s in session.states for t in s.trials if t.trace == trace)
        return Measurement(seconds=(factor(trial) * trial.latency,) * 7)

    session.measurer.remeasure = remeasure  # type: ignore[method-assign]


def readings(session: TuningSession, ratios: list[float]) -> None:
    """Times of the baseline kernel; the last one repeats."""
    left = iter(ratios)
    session.measurer.drift = lambda: next(left, ratios[-1])  # type: ignore[method-assign]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.json"


def test_the_incumbent_is_timed_again_and_both_measurements_count(log):
    recorder = Recorder()
    with small.session(
        log, [small.task(0, small.matmul(8))], trials=6, observer=recorder
    ) as session:
        session.run()
        incumbent = session.states[0].incumbent
    assert incumbent is not None
    assert incumbent.candidate in {candidate for candidate, *_ in recorder.again}
    assert len(incumbent.seconds) == 2 + 3 * 2, "the trial's own repeats, and three times as many"
    assert incumbent.extra["remeasured"] == 6
    found = {t.candidate: t for t in read_log(log).trials}
    assert found[incumbent.candidate].seconds == incumbent.seconds
    assert found[incumbent.candidate].latency == incumbent.latency
    assert {r["candidate"] for r in lines(log, "remeasure")} == {c for c, *_ in recorder.again}


def test_the_only_candidate_of_a_task_is_not_timed_again(log):
    with small.session(log, [small.task(0, small.matmul(8))], trials=1) as session:
        session.run()
    assert lines(log, "remeasure") == []


def test_an_incumbent_that_was_fast_by_chance_is_replaced(log):
    recorder = Recorder()
    with small.session(
        log, [small.task(0, small.matmul(8))], trials=8, observer=recorder
    ) as session:
        slower(session, lambda trial: 1e6)  # slower than any other, also on a busy machine
        session.run()
        state = session.states[0]
    # each new incumbent was timed again, until all candidates had been
    assert {c for c, *_ in recorder.again} == {t.candidate for t in state.trials}
    assert all(after == pytest.approx(1e6 * before) for _, before, after in recorder.again)
    (best,) = best_of(read_log(log).trials).values()
    assert best is not None
    assert state.incumbent is not None
    assert best.candidate == state.incumbent.candidate
    assert state.implementations[0].best_after[-1] == state.incumbent.latency


def test_an_incumbent_is_checked_before_it_is_timed_again(log):
    events = []

    class Order(Recorder):
        def remeasured(self, state, trial, before):
            events.append(("time", trial.candidate))

        def verdict(self, state, trial):
            events.append(("output", trial.candidate))

    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, trials=6, observer=Order()) as session:
        slower(session, lambda trial: 1e6)
        session.run()
    timed = [candidate for what, candidate in events if what == "time"]
    assert len(timed) >= 2
    for candidate in timed:
        assert events.index(("output", candidate)) < events.index(("time", candidate))


@pytest.mark.slow
def test_a_wrong_candidate_is_not_timed_again(log):
    """Its times would be believed by the tuner, and those that skip work are the fastest."""
    tasks = [small.task(0, small.matmul(8))]
    options = {"references": [structure(small.matmul(8))]}
    wrong = "tuning.small:build_every_other_wrong", "tuning.small:run_marked_quickly"
    with small.session(
        log, tasks, build=wrong[0], run=wrong[1], options=options, trials=16
    ) as session:
        session.run()
        incumbent = session.states[0].incumbent
    again = {r["candidate"] for r in lines(log, "remeasure")}
    found = {t.candidate: t.verified for t in read_log(log).trials}
    assert False in found.values()
    assert incumbent is not None
    assert incumbent.candidate in again
    assert {found[candidate] for candidate in again} == {True}


@pytest.mark.sweep
@pytest.mark.parametrize("seconds", [(float("nan"),) * 6, (-1.0,) * 6, (0.0,) * 6])
def test_impossible_times_of_a_second_measurement_are_not_believed(log, seconds):
    """The clock of a board may be broken, or set meanwhile."""
    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, trials=6) as session:
        session.measurer.remeasure = lambda *_: Measurement(seconds=seconds)  # type: ignore[method-assign]
        session.run()
        incumbent = session.states[0].incumbent
        estimate = session.estimate()
    assert lines(log, "remeasure") == []
    assert incumbent is not None
    assert "remeasured" not in incumbent.extra
    assert 0 < estimate == incumbent.latency < float("inf")


class Ticking(small.Recorder):
    """Each trial takes ``step`` seconds by the session's clock, which begins at ``start``."""

    def __init__(self, start: float, step: float) -> None:
        super().__init__()
        self.start, self.step = start, step
        self.pause_after = 0, 0.0
        """After so many trials the clock advances by so many seconds."""

    @property
    def elapsed(self) -> float:
        after, seconds = self.pause_after
        pause = seconds if len(self.trials) > after else 0.0
        return self.start + self.step * len(self.trials) + pause


@pytest.fixture
def ticking(monkeypatch) -> Callable[..., Ticking]:
    """Replaces the session's clock; incumbents are timed again only when tuning is over."""

    def replace(start: float, step: float) -> Ticking:
        recorder = Ticking(start, step)
        stopped = SimpleNamespace(monotonic=lambda: recorder.elapsed, time=time.time)
        monkeypatch.setattr(sessions, "time", stopped)
        monkeypatch.setattr(incumbents, "CONFIRM_SHARE", 0.0)
        monkeypatch.setattr(Clock, "elapsed", property(lambda _: recorder.elapsed))
        return recorder

    return replace


@pytest.mark.slow
def test_a_time_budget_leaves_time_to_confirm_what_is_shipped(log, ticking):
    recorder = ticking(start=90.0, step=0.25)
    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, seconds=100.0, observer=recorder) as session:
        slower(session, lambda trial: 1.0)
        session.run()
        incumbent = session.states[0].incumbent
    assert session.stopped_because == "the time budget of 100 s is spent"
    assert recorder.elapsed <= 100.0 - incumbents.USUAL
    assert incumbent is not None
    assert "remeasured" in incumbent.extra
    assert incumbent.verified
    assert session.unconfirmed == []
    assert recorder.notes == []


@pytest.mark.slow
def test_what_a_spent_time_budget_left_unconfirmed_is_named(log, ticking):
    recorder = ticking(start=0.0, step=1.0)
    recorder.pause_after = 10, 100.0
    tasks = [small.task(n, small.matmul(8 << n)) for n in range(2)]
    with small.session(log, tasks, seconds=100.0, observer=recorder) as session:
        session.run()
    assert recorder.elapsed > 100.0
    assert lines(log, "remeasure") == []
    assert all(s.incumbent is not None and s.incumbent.verified for s in session.states)
    assert session.unconfirmed
    assert recorder.notes == [
        f"not timed again, because the time budget is spent: {', '.join(session.unconfirmed)}. "
        + ("Its best time" if len(session.unconfirmed) == 1 else "Their best times")
        + " may be too low by chance"
    ]


@pytest.mark.slow
def test_a_time_budget_leaves_time_to_repeat_checks_without_a_verdict(log, ticking, monkeypatch):
    monkeypatch.setattr(incumbents, "RECHECK_SHARE", 0.0)
    recorder = ticking(start=90.0, step=0.25)
    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, seconds=100.0, observer=recorder) as session:
        Checks(session, incumbents.PATIENCE)
        session.run()
        incumbent = session.states[0].incumbent
    assert recorder.elapsed < 100.0
    assert incumbent is not None
    assert incumbent.verified


def test_timing_again_takes_a_small_part_of_the_session(log, monkeypatch):
    monkeypatch.setattr(incumbents, "CONFIRM_SHARE", 0.0)
    monkeypatch.setattr(incumbents, "FINAL_CONFIRM_SHARE", 0.0)
    with small.session(log, [small.task(0, small.matmul(8))], trials=6) as session:
        session.run()
    assert lines(log, "remeasure") == []


def test_what_is_shipped_is_timed_again_when_tuning_is_over(log, monkeypatch):
    monkeypatch.setattr(incumbents, "CONFIRM_SHARE", 0.0)
    monkeypatch.setattr(incumbents, "FINAL_CONFIRM_SHARE", float("inf"))
    with small.session(log, [small.task(0, small.matmul(8))], trials=6) as session:
        session.run()
        incumbent = session.states[0].incumbent
    kinds = [json.loads(line)["type"] for line in log.read_text().splitlines()]
    assert "remeasure" not in kinds[: len(kinds) - kinds[::-1].index("trial")]
    assert incumbent is not None
    assert incumbent.candidate in {r["candidate"] for r in lines(log, "remeasure")}


def test_incumbents_of_light_tasks_are_not_timed_again(log):
    tasks = [small.task(0, small.matmul(8), weight=10**6), small.task(1, small.addition(4))]
    with small.session(log, tasks, trials=8) as session:
        session.run()
    assert {r["workload"] for r in lines(log, "remeasure")} == {tasks[0].key}


def test_an_incumbent_that_cannot_be_timed_again_stays(log):
    recorder = Recorder()
    with small.session(
        log, [small.task(0, small.matmul(8))], trials=8, observer=recorder
    ) as session:
        session.measurer.remeasure = lambda *_: Measurement(  # type: ignore[method-assign]
            stage="timeout", message="killed"
        )
        session.run()
        incumbent = session.states[0].incumbent
    assert recorder.again == lines(log, "remeasure") == []
    assert incumbent is not None
    assert incumbent.verified


def test_the_next_run_restores_second_measurements(log):
    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, trials=8) as session:
        session.run()
        first = session.states[0].incumbent
    with small.session(log, tasks, trials=8) as session:
        session.run()
        again = session.states[0].incumbent
    assert first is not None
    assert again is not None
    assert (again.candidate, again.seconds) == (first.candidate, first.seconds)


@pytest.mark.slow
def test_trials_on_a_slow_machine_are_marked_and_timed_again_later(log, monkeypatch):
    monkeypatch.setattr(drifts, "READING_INTERVAL", 0.0)
    recorder = Recorder()
    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, trials=36, observer=recorder) as session:
        readings(session, [1.0, 1.0, 1.25, 1.25, 1.0])
        session.run()
    assert recorder.slow == [True, False]
    assert [r["ratio"] for r in lines(log, "drift")] == [1.0, 1.0, 1.25, 1.0, 1.0]
    assert session.drift.spread == pytest.approx(0.25)
    marks = [t.get("drift") for t in lines(log, "trial")]
    assert set(marks) == {None, 1.25}
    assert session.slow_trials == marks.count(1.25) > 0
    assert marks[0] is None
    incumbent = session.states[0].incumbent
    assert incumbent is not None
    assert "drift" not in incumbent.extra, "it was timed again on a normal machine"


def test_repeats_measured_on_a_slow_machine_are_replaced(log, monkeypatch):
    monkeypatch.setattr(drifts, "READING_INTERVAL", 0.0)
    with small.session(log, [small.task(0, small.matmul(8))], trials=8) as session:
        readings(session, [1.0, 1.5])
        session.drift.look(session.measurer.drift)
        session.run()
        slow = session.states[0].incumbent
        assert slow is not None
        assert slow.extra["drift"] == 1.5
        assert lines(log, "remeasure") == [], "not while the machine is slow"
    with small.session(log, [small.task(0, small.matmul(8))], trials=8) as session:
        readings(session, [1.0])
        slower(session, lambda trial: 0.5)
        session.run()
    (line,) = lines(log, "remeasure")
    quick = next(t for t in read_log(log).trials if t.candidate == line["candidate"])
    assert quick.seconds == line["seconds"]
    assert "drift" not in quick.extra


def test_one_disturbance_is_not_drift():
    measured = iter([1.0, 1.4, 1.02, 1.3, 1.3])
    drift, readings = Drift(), []
    for _ in range(3):
        drift._due = 0.0
        readings.append(drift.look(measured.__next__))
    assert readings == [Reading(1.0, False), Reading(1.02, False), Reading(1.3, True)]
    assert drift.slow
    assert drift.slowdown == pytest.approx(1.3)


def test_readings_are_taken_at_intervals():
    taken: list[float] = []

    def measure() -> float:
        taken.append(1.0)
        return 1.0

    drift = Drift()
    assert drift.look(measure) == Reading(1.0, False)
    assert drift.look(measure) is None
    assert len(taken) == 1


def test_a_machine_that_starts_slow_is_compared_with_its_best():
    clock = iter([1.0, 0.8, 0.82, 0.95, 0.95])
    drift = looked(clock, 3)
    assert drift.slow
    assert drift.slowdown == pytest.approx(0.95 / 0.82)


def test_one_lucky_reading_is_not_the_new_reference():
    drift = looked(iter([1.0, 0.8, 1.01, 1.0]), 3)
    assert not drift.slow
    assert drift.slowdown == pytest.approx(1.0)


def test_a_machine_that_was_fast_only_at_first_is_not_slow_forever():
    drift = looked(iter([1.0] + [1.3] * 2 * READINGS_TO_RESET), READINGS_TO_RESET)
    assert drift.slow
    drift = looked(iter([1.0] + [1.3] * 2 * READINGS_TO_RESET), READINGS_TO_RESET + 1)
    assert not drift.slow
    assert drift.slowdown == pytest.approx(1.0)


def looked(readings: Iterator[float], times: int) -> Drift:
    """After ``times`` readings, some of which are confirmed by a second one."""
    drift = Drift()
    for _ in range(times):
        drift._due = 0.0
        drift.look(readings.__next__)
    return drift


def test_a_runner_without_a_baseline_kernel_logs_no_drift(log):
    with small.session(log, [small.task(0, small.matmul(8))], trials=4) as session:
        session.measurer.drift = lambda: None  # type: ignore[method-assign]
        session.run()
    assert lines(log, "drift") == []
    assert not session.drift.slow
    assert session.drift.spread == 0.0


class Checks:
    """Checks that reach a verdict only with this patience, and only for some candidates."""

    def __init__(self, session: TuningSession, patience: float = 1.0) -> None:
        self.calls: list[tuple[str, float]] = []
        self.patience = patience
        self.hopeless: set[str] = set()
        self._trials = session.states[0].trials
        session.measurer.verify = self.verify  # type: ignore[method-assign]

    def verify(
        self, implementation: Any, trace: Any, *, patience: float = 1.0
    ) -> tuple[float | None, str]:
        candidate = next(t.candidate for t in self._trials if t.trace == trace)
        self.calls.append((candidate, patience))
        if patience < self.patience or candidate in self.hopeless:
            return None, "killed after 60 s (run)"
        return 0.0, ""


def test_a_check_without_a_verdict_is_repeated_with_more_patience(log):
    with small.session(log, [small.task(0, small.matmul(8))], trials=8) as session:
        checks = Checks(session, incumbents.PATIENCE)
        session.run()
        incumbent = session.states[0].incumbent
    assert incumbent is not None
    assert incumbent.verified
    assert (incumbent.candidate, incumbents.PATIENCE) in checks.calls
    assert incumbent.candidate not in session.unverified
    (best,) = best_of(read_log(log).trials).values()
    assert (best.candidate, best.verified) == (incumbent.candidate, True)


@pytest.mark.slow
def test_a_check_without_a_verdict_is_repeated_while_tuning_goes_on(log, monkeypatch):
    monkeypatch.setattr(incumbents, "RECHECK_SHARE", float("inf"))
    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, trials=64, run="tuning.small:run_constantly") as session:
        Checks(session, incumbents.PATIENCE)
        session.run()
    kinds = [json.loads(line) for line in log.read_text().splitlines()]
    right = next(n for n, line in enumerate(kinds) if line.get("verified"))
    assert "trial" in {line["type"] for line in kinds[right:]}, "before the last trial"


def test_the_fastest_that_can_be_verified_takes_the_place_of_one_that_cannot(log):
    with small.session(log, [small.task(0, small.matmul(8))], trials=8) as session:
        session.run()
        state = session.states[0]
        for trial in list(state.trials):
            session.state.replace(state, trial, trial.evolve(verified=None))
        first, second, *_ = ranked(state)
        checks = Checks(session)
        checks.hopeless = {first.candidate}
        session.incumbents.confirm(at_last=True)
        assert [t.verified for t in ranked(state)[:3]] == [None, True, None]
    assert checks.calls == [
        (first.candidate, 1.0),
        (first.candidate, incumbents.PATIENCE),
        (second.candidate, incumbents.PATIENCE),
    ]
    (best,) = best_of(state.trials).values()
    assert best.candidate == second.candidate


def ranked(state: Any) -> list[Trial]:
    return sorted((t for t in state.trials if t.ok), key=lambda t: t.latency)


@pytest.mark.slow
def test_rechecks_are_few_if_nothing_can_be_verified(log, capsys):
    with small.session(log, [small.task(0, small.matmul(8))], trials=16) as session:
        checks = Checks(session, float("inf"))
        session.run()
        progress.summary(session)
    again = [candidate for candidate, patience in checks.calls if patience > 1.0]
    assert 1 <= len(again) <= incumbents.MOST_RECHECKED
    assert len(set(again)) == len(again)
    said = " ".join(capsys.readouterr().err.split())
    assert "the outputs of task0 could not be checked (killed after 60 s (run))" in said


def test_a_wrong_candidate_is_found_by_the_repeated_check(log):
    with small.session(log, [small.task(0, small.matmul(8))], trials=8) as session:
        session.run()
        state = session.states[0]
        first, second, *_ = ranked(state)
        for trial in (first, second):
            session.state.replace(state, trial, trial.evolve(verified=None))
        checks = Checks(session, incumbents.PATIENCE)
        verify = checks.verify

        def wrong(implementation: Any, trace: Any, *, patience: float = 1.0) -> Any:
            error, message = verify(implementation, trace, patience=patience)
            return (1.0, "") if error == 0.0 and trace == first.trace else (error, message)

        session.measurer.verify = wrong  # type: ignore[method-assign]
        session.incumbents.confirm(at_last=True)
        found = {t.candidate: t.verified for t in state.trials}
    assert found[first.candidate] is False
    assert found[second.candidate] is True
