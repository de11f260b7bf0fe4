"""When a session with too many failures is given up."""

from __future__ import annotations

from tuning.invented import INF, add, state
from tvmtune.tuning.failures import MIN_TRIALS, WINDOW, by_stage, too_many


def test_failures_are_counted_by_stage_with_the_first_message_of_each():
    made = state(0, [1.0])
    for stage in ("run", "build", "run"):
        add(made, made.implementations[0], INF, stage=stage)
    last = made.trials[-1]
    made.replace(last, last.evolve(error={"stage": "run", "message": "another"}))
    assert by_stage(made.trials) == {"run": (2, "no run"), "build": (1, "no build")}


def test_a_session_in_which_nothing_works_is_given_up():
    states = state(0, [INF] * (MIN_TRIALS // 2)), state(1, [INF] * (MIN_TRIALS // 2 - 1))
    trials = [t for s in states for t in s.trials]
    assert too_many(trials, states, 0.9) is None, "too few to tell"
    trials.append(add(states[1], states[1].implementations[0], INF, stage="crash"))
    reason = too_many(trials, states, 0.9)
    assert reason is not None
    assert reason.startswith(f"{MIN_TRIALS} of the last {MIN_TRIALS} trials failed")
    assert f"{MIN_TRIALS - 1} at build: no build; 1 at crash: no crash" in reason


def test_one_task_that_cannot_be_built_does_not_end_the_others():
    broken, sound = state(0, [INF] * 500), state(1, [1.0])
    assert too_many([*sound.trials, *broken.trials], [broken, sound], 0.9) is None


def test_a_device_that_stops_working_ends_the_session():
    made = state(0, [1.0] * 1000)
    for _ in range(90):
        add(made, made.implementations[0], INF, stage="run")
    assert too_many(made.trials, [made], 0.9) is None
    add(made, made.implementations[0], INF, stage="run")
    assert too_many(made.trials, [made], 0.9) is not None
    assert too_many(made.trials, [made], 0.95) is None


def test_the_rate_may_be_raised_until_nothing_ends_the_session():
    made = state(0, [INF] * WINDOW)
    assert too_many(made.trials, [made], 1.0) is None
