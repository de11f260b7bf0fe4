"""The task scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tuning.invented import INF, add, state
from tvmtune import api
from tvmtune.cli import group
from tvmtune.errors import UsageError
from tvmtune.tuning import scheduler
from tvmtune.tuning.budget import Budget
from tvmtune.tuning.state import TaskState, estimate
from tvmtune.types import TRANSFER, Timing


def picked(name: str, states: list[TaskState], per_task: int | None = None) -> str | None:
    choice = scheduler.pick(name, states, per_task)
    return choice[0].task.name if choice else None


@pytest.mark.parametrize("name", scheduler.SCHEDULERS)
def test_a_task_without_a_valid_trial_comes_first(name):
    states = [state(0, [1.0], weight=50), state(1, [INF, INF]), state(2, [])]
    assert picked(name, states) in ("task1", "task2")
    states[2].task.flop = 9e9
    assert picked(name, states) == "task2"


def test_round_robin_evens_out_the_trials():
    states = [state(0, [1.0] * 3), state(1, [1.0] * 2), state(2, [1.0] * 2)]
    assert picked("round-robin", states) == "task1"


def test_sequential_finishes_one_task_before_the_next():
    states = [state(0, [1.0] * 30), state(1, [1.0])]
    assert picked("sequential", states, 40) == "task0"
    assert picked("sequential", states, 30) == "task1"


def test_gradient_prefers_the_heaviest_task():
    rates = {"flop": 1e9}
    states = [
        state(0, [1e-3], **rates),
        state(1, [1e-3], weight=5, **rates),
        state(2, [2e-3], flop=2e9),
    ]
    assert picked("gradient", states) == "task1"


def test_gradient_leaves_a_task_that_no_longer_improves():
    stale = state(0, [1e-3] * 300, flop=1e6)
    improving = state(1, [1e-3 * 0.99**n for n in range(100)], flop=1e6)
    assert picked("gradient", [stale, improving]) == "task1"


def test_transferred_records_are_not_trials_of_a_task():
    states = [state(0, [1.0, 1.0]), state(1, [1.0])]
    for _ in range(5):
        add(states[1], states[1].implementations[0], 1.0, tuner=TRANSFER)
    assert picked("round-robin", states) == "task1"
    assert picked("round-robin", states, per_task=2) == "task1"


@pytest.mark.parametrize("name", scheduler.SCHEDULERS)
def test_a_task_rests_when_its_last_trials_brought_no_gain(name):
    stale = state(0, [1.0, 0.5, 0.499, 0.498], weight=100)
    improving = state(1, [1.0, 0.9, 0.8, 0.7])
    choice = scheduler.pick(name, [stale, improving], patience=2)
    assert choice is not None
    assert choice[0] is improving
    assert scheduler.pick(name, [stale], patience=2) is None
    assert scheduler.pick(name, [stale], patience=3) is not None


def test_a_task_without_a_valid_trial_does_not_rest():
    choice = scheduler.pick("gradient", [state(0, [INF] * 40)], patience=2)
    assert choice is not None


def test_the_implementations_of_a_task_rest_together():
    """A gain by one implementation is a gain of the task."""
    both = state(0, [1.0] * 8, [1.0, 0.5])
    assert not both.rests(2)
    assert both.rests(1) is False
    add(both, both.implementations[0], 1.0)
    assert both.rests(1)


@pytest.mark.parametrize("name", scheduler.SCHEDULERS)
def test_skipped_exhausted_and_full_tasks_get_no_more_trials(name):
    skipped, exhausted, full = state(0, [INF]), state(1, [1.0]), state(2, [1.0, 2.0])
    skipped.skipped = "nothing could be built"
    exhausted.implementations[0].exhausted = True
    assert picked(name, [skipped, exhausted, full]) == "task2"
    assert picked(name, [skipped, exhausted, full], per_task=2) is None


def test_every_implementation_gets_first_trials_before_the_slow_one_rests():
    enough = scheduler.EXPLORE
    assert (
        scheduler.choose_implementation(state(0, [1.0] * 9, [5.0] * 3)).implementation.name
        == "way1"
    )
    assert (
        scheduler.choose_implementation(state(0, [1.0] * 3, [5.0] * 9)).implementation.name
        == "way0"
    )
    slow = state(0, [1.0] * enough * 9, [5.0] * enough)
    assert scheduler.choose_implementation(slow).implementation.name == "way0"
    close = state(0, [1.0] * enough * 9, [1.05] * enough)
    assert scheduler.choose_implementation(close).implementation.name == "way1"


def test_an_implementation_that_only_fails_rests():
    failing = state(0, [1.0] * scheduler.EXPLORE, [INF] * (scheduler.GIVE_UP // 3))
    assert scheduler.choose_implementation(failing).implementation.name == "way0"


def test_the_estimate_is_the_weighted_sum_of_the_best():
    assert estimate([state(0, [3.0, 2.0], weight=3), state(1, [9.0], [1.0])]) == 7.0
    assert estimate([state(0, [1.0]), state(1, [INF])]) == INF


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("gradent", "gradient"), ("roundrobin", "round-robin"), ("sequence", "sequen")],
)
def test_an_unknown_scheduler_is_rejected_with_the_nearest_name(wrong, meant):
    with pytest.raises(UsageError, match=f"scheduler '{wrong}' is not known.*mean {meant}"):
        scheduler.check(wrong)


def test_a_direct_algorithm_that_cannot_win_gets_no_more_trials():
    beaten = state(0, [9.0], [1e-3] * 20, flop=1e9)  # 1000 GFLOPS by the second algorithm
    beaten.implementations[1].implementation.exact = False
    assert scheduler.choose_implementation(beaten, top=500.0) is beaten.implementations[1]
    assert scheduler.choose_implementation(beaten, top=2000.0) is beaten.implementations[0]


def test_gradient_leaves_a_task_that_runs_at_the_peak():
    at_peak, below = state(0, [1e-2], flop=1e9), state(1, [5e-3], flop=1e8)
    assert picked("gradient", [at_peak, below]) == "task0"
    choice = scheduler.pick("gradient", [at_peak, below], peak=100.0)
    assert choice is not None
    assert choice[0] is below


def test_the_ceiling_is_never_below_a_measured_rate():
    assert scheduler.ceiling([state(0, [1e-3], flop=1e9)], 100.0) == pytest.approx(1100.0)
    assert scheduler.ceiling([state(0, [INF], flop=1e9)], 100.0) == pytest.approx(110.0)
    assert scheduler.ceiling([state(0, [1e-3])], None) is None


def test_a_task_is_not_starved_by_an_implementation_near_the_peak():
    # direct runs near the peak; the second algorithm, which may go beyond, has hardly been tried
    state_ = state(0, [1e-2], [1.1e-2], flop=1e9)
    state_.implementations[1].implementation.exact = False
    other = state(1, [2e-3] * 40, flop=1e6)
    choice = scheduler.pick("gradient", [state_, other], peak=100.0)
    assert choice == (state_, state_.implementations[1])


@pytest.fixture
def operator_file() -> Path:
    return Path(__file__).parents[2] / "examples" / "rgb2yuv.py"


def test_the_old_name_of_the_gradient_scheduler_stays_accepted():
    assert scheduler.check("effect") == "gradient"
    assert "gradient" in scheduler.SCHEDULERS
    assert "effect" not in scheduler.SCHEDULERS


@pytest.mark.parametrize(
    ("name", "accepted"), [("effect", True), ("gradient", True), ("efekt", False)]
)
def test_the_command_line_accepts_the_old_name(
    name, accepted, operator_file, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    args = ["tune", str(operator_file), "--dry-run"]
    done = CliRunner().invoke(group, [*args, "--scheduler", name])
    assert (done.exit_code == 0) == accepted
    environment = {"TVMTUNE_TUNE_SCHEDULER": name}
    assert (CliRunner().invoke(group, args, env=environment).exit_code == 0) == accepted


def test_the_api_accepts_the_old_name(operator_file, tmp_path):
    plan = api.plan(api.load(str(operator_file), arguments={"w": 16, "h": 16}))
    budget, timing = Budget(trials=1), Timing(repeat=2)
    session = api.tune(
        plan, tmp_path / "log.json", budget=budget, timing=timing, scheduler="effect"
    )
    assert session.new == 1
