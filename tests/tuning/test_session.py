"""The session with real workers on workloads that build in milliseconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tuning import listening, small
from tvmtune.errors import TvmtuneError
from tvmtune.measure import recovery
from tvmtune.passes.workload_keys import structure
from tvmtune.records.best import best_of
from tvmtune.records.log import LogLost, read_log
from tvmtune.tuning import failures, round_times
from tvmtune.tuning.failures import by_stage
from tvmtune.tuning.limits import BATCH
from tvmtune.types import DEFAULT


def test_every_task_gets_a_valid_verified_trial_before_any_is_tuned(tmp_path):
    log = tmp_path / "log.json"
    tasks = [small.task(0, small.matmul(8)), small.task(1, small.addition(8), weight=9)]
    with small.session(log, tasks, trials=2) as session:
        session.run()
    assert session.stopped_because == "the budget of 2 trials is spent"
    assert [s.count for s in session.states] == [1, 1]
    assert session.estimate() < float("inf")
    assert {t.task: (t.tuner, t.verified) for t in read_log(log).trials} == {
        task.key: ("default", True) for task in tasks
    }


def test_a_task_whose_candidates_are_all_invalid_is_skipped_with_its_reason(tmp_path):
    log, recorder = tmp_path / "log.json", small.Recorder()
    tasks = [
        small.task(0, small.matmul(8), name="product", weight=100),
        small.task(1, small.addition(4), name="sum"),
        small.task(2, small.addition(8), name="strange", space=small.Unsearchable()),
    ]
    build = "tuning.small:build_no_matmul"
    with small.session(log, tasks, build=build, observer=recorder) as session:
        session.run()
    assert session.stopped_because == "nothing is left to try"
    assert "first: build: this builder knows no multiplication" in recorder.skips["product"]
    assert recorder.skips["sum"] == "its space holds no further candidate"
    assert recorder.skips["strange"] == "its space cannot be searched: this space has no rules"
    trials = read_log(log).trials
    failed = [t for t in trials if t.task == tasks[0].key]
    assert failed
    assert {t.error["stage"] for t in failed if t.error} == {"build"}
    assert not any(t.ok for t in failed)
    assert list(best_of(trials)) == [tasks[1].key]
    # what is known to fail does not spoil the estimate of the rest
    assert 0 < session.estimate() < float("inf")


@pytest.mark.slow
def test_a_trial_is_in_the_log_before_it_is_reported(tmp_path):
    log = tmp_path / "log.json"

    class Reader(small.Recorder):
        def trial(self, state, trial):
            super().trial(state, trial)
            assert [t.candidate for t in read_log(log).trials] == [t.candidate for t in self.trials]

    recorder = Reader()
    with small.session(
        log, [small.task(0, small.matmul(8))], trials=10, observer=recorder
    ) as session:
        session.run()
    assert len(recorder.trials) == 10


@pytest.mark.slow
def test_a_second_session_continues_the_first(tmp_path):
    log = tmp_path / "log.json"
    tasks = [small.task(0, small.matmul(8)), small.task(1, small.matmul(16))]
    for tuner, trials, before in (("random", 10, 0), ("xgb", 30, 10), ("xgb", 30, 30)):
        with small.session(log, tasks, trials=trials, tuner=tuner) as session:
            assert session.resumed == before
            session.run()
        assert session.total == trials
        assert session.new == trials - before
    log_read = read_log(log)
    assert len(log_read.headers) == 3
    candidates = [(t.workload, t.candidate) for t in log_read.trials]
    assert len(candidates) == 30
    assert len(set(candidates)) == 30
    assert sum(t.tuner == "default" for t in log_read.trials) == 2


@pytest.mark.slow
def test_a_continued_log_gets_the_default_schedule_of_this_version(tmp_path):
    log, mod = tmp_path / "log.json", small.addition(8)
    for trials, space in ((1, None), (2, small.tiled(mod)), (9, small.tiled(mod))):
        with small.session(log, [small.task(0, mod, space=space)], trials=trials) as session:
            session.run()
    defaults = [t.candidate for t in read_log(log).trials if t.tuner == DEFAULT]
    assert len(defaults) == len(set(defaults)) == 2


def test_a_budget_per_task_is_kept(tmp_path):
    tasks = [small.task(0, small.matmul(8)), small.task(1, small.matmul(16))]
    with small.session(tmp_path / "log.json", tasks, per_task=5) as session:
        session.run()
    assert [s.count for s in session.states] == [5, 5]
    assert session.stopped_because == "nothing is left to try"


def test_a_budget_per_task_that_is_spent_leaves_no_room_for_a_new_default_schedule(tmp_path):
    log, mod = tmp_path / "log.json", small.addition(8)
    for space in (None, small.tiled(mod)):
        with small.session(log, [small.task(0, mod, space=space)], per_task=1) as session:
            session.run()
    assert len(read_log(log).trials) == 1


@pytest.mark.slow
def test_a_wrong_kernel_is_caught_and_the_next_takes_its_place(tmp_path):
    log, mod = tmp_path / "log.json", small.matmul(8)
    with small.session(
        log,
        [small.task(0, mod)],
        build="tuning.small:build_every_other_wrong",
        run="tuning.small:run_marked_quickly",
        options={"references": [structure(mod)]},
        trials=20,
    ) as session:
        session.run()
    trials = read_log(log).trials
    wrong = [t for t in trials if small.is_wrong(t.candidate) and t.seconds]
    right = [t for t in trials if not small.is_wrong(t.candidate)]
    assert wrong
    assert right
    for trial in wrong:
        assert trial.verified is False
        assert trial.error is not None
        assert trial.error["stage"] == "wrong-answer"
        assert "max|y - ref| / max|ref| is 7.14e-02" in trial.error["message"]
    (best,) = best_of(trials).values()
    assert best.verified is True
    assert best.latency == min(t.latency for t in right)
    incumbent = session.states[0].incumbent
    assert incumbent is not None
    assert incumbent.candidate == best.candidate


@pytest.mark.slow
def test_a_tuner_is_told_that_its_candidate_is_wrong(tmp_path, monkeypatch):
    listening.register(monkeypatch)
    mod = small.matmul(8)
    with small.session(
        tmp_path / "log.json",
        [small.task(0, mod)],
        build="tuning.small:build_every_other_wrong",
        run="tuning.small:run_marked_quickly",
        options={"references": [structure(mod)]},
        tuner="listening",
        trials=20,
    ) as session:
        session.run()
    wrong = {t.candidate for t in session.trials if t.verified is False}
    assert wrong
    assert wrong & set(listening.heard)
    for candidate, latency in listening.heard.items():
        assert (latency == float("inf")) == (candidate in wrong)


@pytest.mark.slow
def test_an_implementation_that_cannot_be_searched_is_reported(tmp_path):
    recorder = small.Recorder()
    task = small.task(0, small.matmul(8), name="product")
    (direct,) = task.implementations
    task.implementations.append(replace(direct, name="template", space=small.Unsearchable()))
    with small.session(tmp_path / "log.json", [task], observer=recorder, trials=20) as session:
        session.run()
    assert session.new == 20
    assert [n for n in recorder.notes if not n.startswith("not timed again")] == [
        "product (template) has no default schedule: this space has no default",
        "product (template) is left out: its space cannot be searched: this space has no rules",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheduling", ["gradient", pytest.param("round-robin", marks=pytest.mark.soak)]
)
def test_proposing_ahead_leaves_the_order_to_the_scheduler(tmp_path, scheduling):
    """A task that takes nearly all of the time must not wait for the others."""
    tasks = [
        small.task(0, small.matmul(512), name="heavy", weight=1000),
        small.task(1, small.matmul(8), name="light"),
    ]
    with small.session(
        tmp_path / "log.json", tasks, tuner="random", scheduling=scheduling, trials=2 + 4 * BATCH
    ) as session:
        session.run()
    heavy, light = (state.count for state in session.states)
    assert heavy + light == 2 + 4 * BATCH
    if scheduling == "gradient":
        assert heavy >= 1 + 3 * BATCH
    else:
        assert abs(heavy - light) <= BATCH


@pytest.mark.slow
def test_rounds_are_built_ahead_where_building_does_not_disturb(tmp_path, monkeypatch):
    tasks = [small.task(n, small.matmul(8 << n)) for n in range(2)]
    building: list[int] = []
    with small.session(
        tmp_path / "log.json",
        tasks,
        scheduling="round-robin",
        exclusive=False,
        trials=2 + 4 * BATCH,
    ) as session:
        measure = session.measurer.time

        def note(*args: Any, **options: Any) -> None:
            building.append(sum(impl.pending for s in session.states for impl in s.implementations))
            measure(*args, **options)

        monkeypatch.setattr(session.measurer, "time", note)
        session.run()
    assert session.new == 2 + 4 * BATCH
    assert max(building) == 2 * BATCH
    pending = [impl.pending for state in session.states for impl in state.implementations]
    assert pending == [0, 0]
    assert len({t.candidate for t in session.trials}) == session.new


@pytest.mark.slow
def test_a_task_with_only_wrong_kernels_has_nothing_to_ship(tmp_path):
    log, mod = tmp_path / "log.json", small.matmul(8)
    options = {"references": [structure(mod)]}
    with small.session(
        log, [small.task(0, mod)], build="tuning.small:build_all_wrong", options=options, trials=6
    ) as session:
        session.run()
    assert session.states[0].incumbent is None
    assert by_stage(session.states[0].trials)["wrong-answer"][0] == 6
    assert best_of(read_log(log).trials) == {}


@pytest.mark.slow
def test_an_interrupted_session_keeps_what_it_measured(tmp_path):
    log = tmp_path / "log.json"

    class Impatient(small.Recorder):
        def trial(self, state, trial):
            super().trial(state, trial)
            if len(self.trials) == 5:
                raise KeyboardInterrupt

    recorder = Impatient()
    tasks = [small.task(0, small.matmul(8))]
    with (
        small.session(log, tasks, trials=40, observer=recorder) as session,
        pytest.raises(KeyboardInterrupt),
    ):
        session.run()
    assert len(read_log(log).trials) == 5
    assert not session.measurer.directory.exists()


@pytest.mark.slow
def test_a_session_whose_log_is_removed_ends_and_says_where_its_trials_are(tmp_path):
    log = tmp_path / "log.json"

    class Removing(small.Recorder):
        def trial(self, state, trial):
            super().trial(state, trial)
            if len(self.trials) == 3:
                log.unlink()

    recorder = Removing()
    tasks = [small.task(0, small.matmul(8))]
    with (
        small.session(log, tasks, trials=40, observer=recorder) as session,
        pytest.raises(LogLost, match=r"log\.json was removed .* saved to .*log\.json\.rescued"),
    ):
        session.run()
    saved = [t.candidate for t in read_log(tmp_path / "log.json.rescued").trials]
    assert saved[:3] == [t.candidate for t in recorder.trials]
    assert len(saved) - 3 in (0, 1)  # the line at hand may be that of another trial
    assert not log.exists()


def test_incumbents_left_unchecked_by_a_killed_run_are_checked_by_the_next(tmp_path):
    log = tmp_path / "log.json"
    tasks = [small.task(0, small.matmul(8))]
    with small.session(log, tasks, trials=6) as session:
        session.run()
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"type":"verdict"' not in line))
    assert not any(t.verified for t in read_log(log).trials)
    with small.session(log, tasks, trials=6) as session:
        session.run()
    best = min((t for t in read_log(log).trials if t.ok), key=lambda t: t.latency)
    assert best.verified


@pytest.mark.parametrize("tuner", ["grid", "random"])
def test_a_small_space_is_measured_to_its_last_point(tmp_path, tuner):
    mod = small.addition(12)
    space = small.tiled(mod)
    assert space.size == 6
    tasks = [small.task(0, mod, space=space)]
    for new in (6, 0):
        with small.session(tmp_path / "log.json", tasks, tuner=tuner, trials=1000) as session:
            session.run()
        assert session.stopped_because == "every point of the space has been measured"
        assert (session.total, session.new) == (6, new)


def test_a_session_in_which_everything_fails_is_given_up_with_the_causes(tmp_path):
    log = tmp_path / "log.json"
    tasks = [small.task(n, small.matmul(8 << n)) for n in range(3)]
    build = "tuning.small:build_no_matmul"
    with (
        small.session(log, tasks, build=build, trials=1000) as session,
        pytest.raises(
            TvmtuneError, match="trials failed.*at build: this builder knows no multiplication"
        ),
    ):
        session.run()
    assert session.stopped_because == "too many trials failed"
    assert failures.MIN_TRIALS <= len(read_log(log).trials) < failures.MIN_TRIALS + BATCH


def test_a_failure_rate_of_1_tolerates_any_number_of_failures(tmp_path):
    tasks = [small.task(0, small.matmul(8))]
    build = "tuning.small:build_no_matmul"
    with small.session(
        tmp_path / "log.json", tasks, build=build, trials=1000, failure_rate=1.0
    ) as session:
        session.run()
    assert session.stopped_because == "nothing is left to try"


@pytest.mark.slow
def test_a_session_ends_when_its_patience_does(tmp_path):
    tasks = [small.task(0, small.matmul(8))]
    log = tmp_path / "log.json"
    run = "tuning.small:run_constantly"
    with small.session(log, tasks, run=run, patience=20) as session:
        session.run()
    assert session.stopped_because == "the estimate improved by less than 1% over 20 trials"
    assert session.total < 20 + 2 * BATCH
    # the trials count that are in the log
    with small.session(log, tasks, patience=20) as session:
        session.run()
    assert session.new == 0


def test_a_time_budget_is_kept(tmp_path):
    tasks = [small.task(n, small.matmul(8 << n)) for n in range(2)]
    with small.session(tmp_path / "log.json", tasks, seconds=3.0) as session:
        session.run()
    assert session.stopped_because == "the time budget of 3 s is spent"
    # what had passed before the session began counts as well
    with small.session(tmp_path / "log.json", tasks, seconds=3.0) as session:
        session.clock.begun -= 3.0
        session.run()
    assert session.new == 0


@pytest.mark.slow
def test_proposing_is_bounded_by_what_measuring_takes(tmp_path, monkeypatch):
    listening.register(monkeypatch)
    tasks = [small.task(0, small.matmul(8))]
    with small.session(tmp_path / "log.json", tasks, trials=30, tuner="listening") as session:
        session.run()
    assert [count for _, count, _ in listening.asked] == [BATCH, 30 - 1 - BATCH]
    each = session.times.measuring.of(session.states[0].implementations[0].key)
    assert each is not None
    for _, _, seconds in listening.asked:
        assert seconds is not None
        assert seconds >= round_times.MIN_PROPOSAL_SECONDS
    assert session.times.proposal_seconds(session.states[0].implementations[0].key, BATCH) == max(
        round_times.MIN_PROPOSAL_SECONDS, round_times.PROPOSING * BATCH * each
    )


def test_a_model_that_cannot_be_fitted_is_reported_once(tmp_path):
    notes: list[str] = []

    class Noting(small.Recorder):
        def noted(self, message):
            notes.append(message)

    tasks = [small.task(0, small.matmul(8))]
    with small.session(
        tmp_path / "log.json", tasks, tuner="xgb-knob", trials=45, failure_rate=1.0,
        build="tuning.small:build_no_matmul", observer=Noting(),
    ) as session:  # fmt: skip
        session.run()
    assert len(notes) == 1
    assert "the cost model proposes at random: none of the" in notes[0]


@pytest.mark.slow
def test_a_full_disk_is_held_against_no_candidate(tmp_path, monkeypatch):
    """The run ends and names the fault; the next one measures what this one could not."""
    monkeypatch.setattr(recovery, "PAUSES", (0.05, 0.1))
    monkeypatch.setattr(recovery, "PATIENCE", 0.5)
    log, full = tmp_path / "log.json", tmp_path / "full"
    how = {"build": "tuning.small:build_or_meet_a_fault", "options": {"full": str(full)}}
    tasks = [small.task(0, small.matmul(8)), small.task(1, small.addition(16))]
    full.touch()
    with (
        small.session(log, tasks, trials=6, **how) as session,
        pytest.raises(recovery.EnvironmentFault, match="No space left on device"),
    ):
        session.run()
    assert read_log(log).trials == []
    full.unlink()
    with small.session(log, tasks, trials=6, **how) as session:
        session.run()
    trials = read_log(log).trials
    assert len(trials) == 6
    assert all(trial.ok for trial in trials)
    assert {t.task for t in trials if t.tuner == DEFAULT} == {task.key for task in tasks}


def test_a_killed_builder_is_held_against_no_candidate(tmp_path, monkeypatch):
    monkeypatch.setattr(recovery, "PAUSES", (0.05, 0.1))
    monkeypatch.setattr(recovery, "ALONE", (0.05, 0.1))
    log, kill = tmp_path / "log.json", tmp_path / "kill"
    recorder = small.Recorder()
    with small.session(
        log,
        [small.task(0, small.matmul(8))],
        trials=8,
        build="tuning.small:build_or_meet_a_fault",
        options={"kill": str(kill)},
        observer=recorder,
    ) as session:
        kill.touch()
        session.run()
    assert not kill.exists()
    trials = read_log(log).trials
    assert len(trials) == 8
    assert all(trial.ok for trial in trials)
