"""When a session ends, and how large its next round may be."""

from __future__ import annotations

from typing import Any

import pytest

from tuning.invented import INF, StoppedClock, add, state
from tvmtune.tuning import budget as budgets
from tvmtune.tuning.budget import Budget
from tvmtune.tuning.limits import BATCH, COMPLETE, SessionLimits
from tvmtune.tuning.round_times import MIN_PROPOSAL_SECONDS, RoundTimes
from tvmtune.tuning.state import SessionState, TaskState, stalled
from tvmtune.types import TRANSFER

KEY = ("w0.0", "way0")


def limits(
    *states: TaskState, spent: float = 0.0, times: RoundTimes | None = None, **budget: Any
) -> SessionLimits:
    session = SessionState(list(states), [t for s in states for t in s.own])
    return SessionLimits(Budget(**budget), session, times or RoundTimes(), StoppedClock(spent))


def reason(*states: TaskState, **given: Any) -> str:
    found = limits(*states, **given)
    assert found.reached() == bool(found.reason)
    return found.reason


def test_trials_of_all_tasks_count_together():
    states = state(0, [1.0] * 3), state(1, [1.0] * 4)
    assert reason(*states, trials=8) == ""
    assert reason(*states, trials=7) == "the budget of 7 trials is spent"
    assert limits(*states, trials=9).batch() == 2


def test_time_that_is_reserved_is_not_for_rounds():
    found = limits(state(0, [1.0]), spent=94.0, seconds=100.0)
    found._times.rounds.add({KEY}, 1, 1.0)
    assert (found.batch(KEY), found.reached()) == (6, False)
    found.reserved = 4.0
    assert (found.batch(KEY), found.reached()) == (2, False)
    assert found.seconds_left == 6.0
    found.reserved = 6.0
    assert (found.batch(KEY), found.reached()) == (0, True)
    assert found.reason == "the time budget of 100 s is spent"


def test_patience_ends_when_its_trials_gained_less_than_1_percent():
    history = [1.0] * BATCH
    assert reason(state(0, [*history, 0.98, *[0.979] * 4]), patience=5) == ""
    assert "less than 1% over 4 trials" in reason(state(0, [*history, 0.98, 0.979] * 2), patience=4)
    assert reason(state(0, history), patience=BATCH) == "", "there is nothing to compare with yet"


def test_patience_depends_on_the_whole_estimate():
    heavy, light = state(0, [1.0] * BATCH), state(1, [0.01] * BATCH)
    for _ in range(4):
        add(light, light.implementations[0], 0.001)
    assert "less than 1% over 4 trials" in reason(heavy, light, patience=4)
    assert not light.rests(4)
    heavy_by_weight = state(1, [0.01] * BATCH, weight=100)
    for _ in range(4):
        add(heavy_by_weight, heavy_by_weight.implementations[0], 0.001)
    assert reason(heavy, heavy_by_weight, patience=4) == ""


def test_patience_waits_until_every_heavy_task_had_a_round():
    done, fresh = state(0, [1.0] * 50), state(1, [1.0])
    assert reason(fresh, done, patience=20) == ""
    fresh.skipped = "its space holds no further candidate"
    assert "less than 1% over 20 trials" in reason(fresh, done, patience=20)


def test_transferred_records_precede_the_first_trial():
    made = state(0, [])
    for _ in range(40):
        add(made, made.implementations[0], 1.0, tuner=TRANSFER)
    for _ in range(4):
        add(made, made.implementations[0], 2.0)
    assert reason(made, patience=4) == "", "all four trials are the last four"
    add(made, made.implementations[0], 2.0)
    assert "less than 1% over 4 trials" in reason(made, patience=4)


def test_a_task_that_only_fails_never_stalls_an_estimate():
    made = state(0, [INF] * 30)
    assert not stalled([made], made.trials, 10)


def test_the_size_of_the_space_limits_the_trials():
    states = state(0, [1.0] * 3, size=4), state(1, [1.0, INF], size=2)
    assert reason(*states, trials=1000) == ""
    assert limits(*states, trials=1000).batch() == 1
    add(states[0], states[0].implementations[0], 1.0)
    assert reason(*states, trials=1000) == COMPLETE
    assert reason(*states, trials=6) == COMPLETE
    unknown = state(2, [1.0])
    assert limits(*states, unknown).batch() == BATCH


def test_a_space_is_complete_only_if_its_size_is_known():
    one, two = state(0, [1.0]), state(1, [1.0])
    for impl in (*one.implementations, *two.implementations):
        impl.exhausted = True
    found = limits(one, two)
    one.implementations[0].complete = True
    found.nothing_left()
    assert found.reason == "nothing is left to try"
    two.implementations[0].complete = True
    found.nothing_left()
    assert found.reason == COMPLETE


def test_resting_tasks_are_the_reason_to_stop():
    found = limits(state(0, [1.0] * 9), task_patience=4)
    found.nothing_left()
    assert found.reason == "no task improved by 1% over its last 4 trials"


def test_a_round_without_enough_time_is_not_started():
    times = RoundTimes()
    times.rounds.add({KEY}, 10, 20.0)
    made = state(0, [1.0])
    assert limits(made, spent=50.0, times=times, seconds=100.0).batch(KEY) == BATCH
    assert limits(made, spent=90.0, times=times, seconds=100.0).batch(KEY) == 5
    late = limits(made, spent=99.0, times=times, seconds=100.0)
    assert not late.reached()
    assert late.batch(KEY) == 0
    assert late.reason == "the time budget of 100 s is spent"
    both = limits(made, spent=10.0, times=times, seconds=100.0, trials=1)
    assert both.batch(KEY) == 0
    assert both.reason == "", "the trials are spent, not the time"
    assert reason(made, spent=100.0, seconds=100.0) == "the time budget of 100 s is spent"


def test_a_round_in_progress_counts_towards_the_limits():
    times = RoundTimes()
    times.rounds.add({KEY}, 10, 20.0)
    made = state(0, [1.0])
    found = limits(made, spent=60.0, times=times, seconds=100.0, trials=20)
    assert found.batch(KEY) == 16
    assert found.batch(KEY, begun={KEY: 8}) == 11, "one trial has been, eight are under way"
    assert found.batch(KEY, begun={KEY: 18}) == 1
    slow = limits(made, spent=60.0, times=times, seconds=100.0)
    assert slow.batch(KEY, begun={KEY: 16}) == 4, "8 s are left after the round"
    assert slow.batch(KEY, begun={KEY: 20}) == 0
    assert slow.reason == "", "that round may turn out to be quicker"


def test_proposing_may_take_a_quarter_of_the_measuring_time():
    times = RoundTimes()
    assert times.proposal_seconds(KEY, 16) is None, "nothing has been measured yet"
    times.measuring.add({KEY, ("w1", "way0")}, 10, 5.0)
    assert times.proposal_seconds(KEY, 16) == pytest.approx(2.0), "as all have taken so far"
    times.measuring.add({("w1", "way0")}, 10, 0.01)
    assert times.proposal_seconds(("w1", "way0"), 16) == MIN_PROPOSAL_SECONDS
    times.measuring.add({KEY}, 10, 20.0)
    assert times.proposal_seconds(KEY, 16) == pytest.approx(8.0)
    assert times.proposal_seconds(KEY, 8) == pytest.approx(4.0)


@pytest.mark.parametrize("given", [{"trials": 9}, {"seconds": 9.0}, {"per_task": 9}])
def test_a_limited_budget_is_unchanged(given):
    assert Budget(**given).limited
    assert Budget(**given).with_defaults() == Budget(**given)


def test_a_budget_without_limits_gets_the_defaults():
    full = Budget().with_defaults()
    assert (full.seconds, full.patience) == (budgets.SECONDS, budgets.PATIENCE)
    assert Budget(patience=7).with_defaults() == Budget(seconds=budgets.SECONDS, patience=7)
    own = Budget(task_patience=7).with_defaults()
    assert own == Budget(seconds=budgets.SECONDS, task_patience=7)
