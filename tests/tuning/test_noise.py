"""Leaders are timed again before they are trusted, and a machine that changes its speed is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuning import small
from tvmtune.measure.measurer import Measurement
from tvmtune.records.best import best_of
from tvmtune.records.log import read_log
from tvmtune.tuning import drift as drifts
from tvmtune.tuning import leaders
from tvmtune.tuning.drift import SETTLED, Drift
from tvmtune.tuning.session import Session
from tvmtune.types import Trial


@pytest.fixture(autouse=True)
def unbounded(monkeypatch):
    """As if each session had lasted for hours."""
    monkeypatch.setattr(leaders, "SHARE", float("inf"))


class Told(small.Record):
    def __init__(self) -> None:
        super().__init__()
        self.again: list[tuple[str, float, float]] = []
        self.slow: list[bool] = []

    def remeasured(self, state: Any, trial: Any, before: float) -> None:
        self.again.append((trial.candidate, before, trial.latency))

    def drifted(self, drift: Drift) -> None:
        self.slow.append(drift.slow)


def lines(log: Path, kind: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return [r for r in records if r["type"] == kind]


def slower(session: Session, factor: Callable[[Trial], float]) -> None:
    """From now on, a candidate that is timed again takes ``factor`` times as long as before."""

    def remeasure(implementation: Any, trace: Any) -> Measurement:
        trial = next(t for s in session.states for t in s.trials if t.trace == trace)
        return Measurement(seconds=(factor(trial) * trial.latency,) * 7)

    session.measurer.remeasure = remeasure  # type: ignore[method-assign]


def readings(session: Session, ratios: list[float]) -> None:
    """What the machine's baseline kernel will take, the last for ever."""
    left = iter(ratios)
    session.measurer.drift = lambda: next(left, ratios[-1])  # type: ignore[method-assign]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.json"


def test_the_leader_is_timed_again_and_both_measurements_count(log):
    told = Told()
    with small.session(log, [small.task(0, small.matmul(8))], trials=6, observer=told) as session:
        session.run()
        leader = session.states[0].leader
    assert leader is not None
    assert leader.candidate in {candidate for candidate, *_ in told.again}
    assert len(leader.seconds) == 2 + 3 * 2, "the trial's own repeats, and three times as many"
    assert leader.extra["remeasured"] == 6
    found = {t.candidate: t for t in read_log(log).trials}
    assert found[leader.candidate].seconds == leader.seconds
    assert found[leader.candidate].latency == leader.latency
    assert {r["candidate"] for r in lines(log, "remeasure")} == {c for c, *_ in told.again}


def test_the_only_candidate_of_a_task_has_not_won_by_chance(log):
    with small.session(log, [small.task(0, small.matmul(8))], trials=1) as session:
        session.run()
    assert lines(log, "remeasure") == []


def test_a_leader_by_chance_makes_way_for_the_next(log):
    told = Told()
    with small.session(log, [small.task(0, small.matmul(8))], trials=8, observer=told) as session:
        slower(session, lambda trial: 100.0)
        session.run()
        state = session.states[0]
    # each that came to lead was found out, until none was left that had been timed but once
    assert {c for c, *_ in told.again} == {t.candidate for t in state.trials}
    assert all(after == pytest.approx(100 * before) for _, before, after in told.again)
    (best,) = best_of(read_log(log).trials).values()
    assert best is not None
    assert state.leader is not None
    assert best.candidate == state.leader.candidate
    assert state.arms[0].best_after[-1] == state.leader.latency


def test_a_leader_is_timed_again_before_its_answer_is_checked(log):
    events = []

    class Order(Told):
        def remeasured(self, state, trial, before):
            events.append(("time", trial.candidate))

        def verdict(self, state, trial):
            events.append(("answer", trial.candidate))

    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, trials=6, observer=Order()) as session:
        slower(session, lambda trial: 1e6 if trial.tuner == "default" else 1.0)
        session.run()
        leader = session.states[0].leader
    assert leader is not None
    assert leader.tuner != "default", "it was found out"
    assert events.index(("time", leader.candidate)) < events.index(("answer", leader.candidate))


def test_timing_again_takes_a_small_part_of_the_session(log, monkeypatch):
    monkeypatch.setattr(leaders, "SHARE", 0.0)
    monkeypatch.setattr(leaders, "AT_LAST", 0.0)
    with small.session(log, [small.task(0, small.matmul(8))], trials=6) as session:
        session.run()
    assert lines(log, "remeasure") == []


def test_what_is_shipped_is_timed_again_when_tuning_is_over(log, monkeypatch):
    monkeypatch.setattr(leaders, "SHARE", 0.0)
    monkeypatch.setattr(leaders, "AT_LAST", float("inf"))
    with small.session(log, [small.task(0, small.matmul(8))], trials=6) as session:
        session.run()
        leader = session.states[0].leader
    kinds = [json.loads(line)["type"] for line in log.read_text().splitlines()]
    assert "remeasure" not in kinds[: len(kinds) - kinds[::-1].index("trial")]
    assert leader is not None
    assert leader.candidate in {r["candidate"] for r in lines(log, "remeasure")}


def test_a_task_that_hardly_counts_is_not_worth_it(log):
    tasks = [small.task(0, small.matmul(8), weight=10**6), small.task(1, small.addition(4))]
    with small.session(log, tasks, trials=8) as session:
        session.run()
    assert {r["workload"] for r in lines(log, "remeasure")} == {tasks[0].key}


def test_a_leader_that_cannot_be_timed_again_stays(log):
    told = Told()
    with small.session(log, [small.task(0, small.matmul(8))], trials=8, observer=told) as session:
        session.measurer.remeasure = lambda *_: Measurement(  # type: ignore[method-assign]
            stage="timeout", message="killed"
        )
        session.run()
        leader = session.states[0].leader
    assert told.again == lines(log, "remeasure") == []
    assert leader is not None
    assert leader.verified


def test_the_next_run_knows_what_was_timed_again(log):
    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, trials=8) as session:
        session.run()
        first = session.states[0].leader
    with small.session(log, tasks, trials=8) as session:
        session.run()
        again = session.states[0].leader
    assert first is not None
    assert again is not None
    assert (again.candidate, again.seconds) == (first.candidate, first.seconds)


@pytest.mark.slow
def test_what_is_measured_on_a_slow_machine_is_marked_and_timed_again_later(log, monkeypatch):
    monkeypatch.setattr(drifts, "EVERY", 0.0)
    told = Told()
    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, trials=36, observer=told) as session:
        readings(session, [1.0, 1.0, 1.25, 1.25, 1.0])
        session.run()
    assert told.slow == [True, False]
    assert [r["ratio"] for r in lines(log, "drift")] == [1.0, 1.0, 1.25, 1.0, 1.0]
    assert session.drift.spread == pytest.approx(0.25)
    marks = [t.get("drift") for t in lines(log, "trial")]
    assert set(marks) == {None, 1.25}
    assert session.slowed == marks.count(1.25) > 0
    assert marks[0] is None
    leader = session.states[0].leader
    assert leader is not None
    assert "drift" not in leader.extra, "it is the machine's doing no longer"


def test_repeats_of_a_slow_machine_are_replaced(log, monkeypatch):
    monkeypatch.setattr(drifts, "EVERY", 0.0)
    with small.session(log, [small.task(0, small.matmul(8))], trials=8) as session:
        readings(session, [1.0, 1.5])
        session.drift.look()
        session.run()
        slow = session.states[0].leader
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


def test_one_disturbance_is_no_drift():
    heard: list[tuple[float, bool]] = []
    clock = iter([1.0, 1.4, 1.02, 1.3, 1.3])
    drift = Drift(lambda: next(clock), lambda ratio, changed: heard.append((ratio, changed)))
    for _ in range(3):
        drift._due = 0.0
        drift.look()
    assert heard == [(1.0, False), (1.02, False), (1.3, True)]
    assert drift.slow
    assert drift.slowdown == pytest.approx(1.3)


def test_readings_are_taken_at_intervals():
    taken: list[float] = []

    def measure() -> float:
        taken.append(1.0)
        return 1.0

    drift = Drift(measure, lambda ratio, changed: None)
    drift.look()
    drift.look()
    assert len(taken) == 1


def test_a_machine_that_begins_slow_is_compared_with_its_best():
    clock = iter([1.0, 0.8, 0.82, 0.95, 0.95])
    drift = looked(clock, 3)
    assert drift.slow
    assert drift.slowdown == pytest.approx(0.95 / 0.82)


def test_one_lucky_reading_is_no_mark_to_be_held_against():
    drift = looked(iter([1.0, 0.8, 1.01, 1.0]), 3)
    assert not drift.slow
    assert drift.slowdown == pytest.approx(1.0)


def test_a_machine_that_was_quick_for_its_first_seconds_only_is_not_slow_for_ever():
    drift = looked(iter([1.0] + [1.3] * 2 * SETTLED), SETTLED)
    assert drift.slow
    drift = looked(iter([1.0] + [1.3] * 2 * SETTLED), SETTLED + 1)
    assert not drift.slow
    assert drift.slowdown == pytest.approx(1.0)


def looked(readings: Iterator[float], times: int) -> Drift:
    """After so many looks, some of which take a second reading."""
    drift = Drift(lambda: next(readings), lambda ratio, changed: None)
    for _ in range(times):
        drift._due = 0.0
        drift.look()
    return drift


def test_a_runner_without_a_baseline_says_nothing_of_drift(log):
    with small.session(log, [small.task(0, small.matmul(8))], trials=4) as session:
        session.measurer.drift = lambda: None  # type: ignore[method-assign]
        session.run()
    assert lines(log, "drift") == []
    assert not session.drift.slow
    assert session.drift.spread == 0.0
