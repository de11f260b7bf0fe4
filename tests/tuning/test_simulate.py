"""Simulation of tuners on completely measured spaces."""

from __future__ import annotations

import gzip
import json
import shutil

import numpy as np
import pytest

from tuning.surveyed import KERNEL, survey
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records.log import read_log
from tvmtune.tuning.simulation import logged_spaces, simulate
from tvmtune.tuning.simulation.simulate import PARTS

TUNERS = [n for n in simulate.names() if n != "metaschedule"]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return survey(tmp_path_factory.mktemp("survey"))


@pytest.fixture(scope="module")
def space(log):
    (only,) = simulate.full_spaces(read_log(log))[0]
    return only


def test_the_space_is_rebuilt_from_the_log_alone(space):
    assert str(space) == "task 0 product1 (template)"
    assert space.size == 180 == space.implementation.space.size
    assert len(space.implementation.space.designs) == 1
    assert space.best == 1e-3
    assert [space.within(part) for part in (1.0, 0.95, 0.6)] == [1, 1, 7]
    assert space.failed == 0


@pytest.mark.parametrize("name", TUNERS)
def test_every_tuner_finds_the_best_of_the_space(space, name):
    run = simulate.play(space, name, {}, seed=0)
    assert run.missed == 0
    assert run.best == space.best
    assert set(run.reached) == set(PARTS)
    assert run.reached[0.99] <= run.trials <= space.size


@pytest.mark.slow
def test_metaschedules_own_search_finds_it_too(space):
    runs = [simulate.play(space, "metaschedule", {}, seed=0) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].best == space.best
    assert runs[0].missed == 0


@pytest.mark.slow
def test_a_space_that_metaschedule_cannot_mutate_is_an_error(tmp_path):
    """Its unroll mutator assumes that every annotation was sampled."""
    fixed = '    sch.annotate(sch.get_sblock("root"), "meta_schedule.unroll_explicit", 16)\n'
    (space,), _ = simulate.full_spaces(read_log(survey(tmp_path, code=KERNEL + fixed)))
    with pytest.raises(TvmtuneError, match="MetaSchedule's own search fails on this space"):
        simulate.play(space, "metaschedule", {}, seed=0)
    assert simulate.play(space, "random", {}, seed=0).best == space.best


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["xgb", "ga", "random"])
def test_the_seed_decides_the_run(space, name):
    cache = simulate.ReplayCache()
    runs = [simulate.play(space, name, {}, seed, cache=cache) for seed in (0, 1, 2, 3, 0)]
    assert runs[0] == runs[-1] == simulate.play(space, name, {}, 0)
    assert len({run.reached[0.99] for run in runs}) > 1


def test_a_run_ends_at_its_trials(space):
    run = simulate.play(space, "random", {}, seed=0, trials=10)
    assert run.trials == 10
    assert 0.99 not in run.reached


def test_failures_in_the_log_are_failures_of_the_run(tmp_path):
    (space,), _ = simulate.full_spaces(read_log(survey(tmp_path, failing=True)))
    assert space.size == 180
    assert 50 < space.failed < 70
    run = simulate.play(space, "grid", {}, seed=0)
    assert run.best == space.best == 1e-3
    assert run.missed == 0


def test_a_log_that_lacks_much_of_its_space_is_rejected(tmp_path):
    log = read_log(survey(tmp_path, part=0.6))
    with pytest.raises(TvmtuneError, match="no space that was measured in full .*108 trials"):
        simulate.full_spaces(log)
    (space,) = logged_spaces.spaces_of(log)
    with pytest.raises(TvmtuneError, match="of the first .* proposals of random are not in the"):
        simulate.play(space, "random", {}, seed=0)


@pytest.mark.slow
def test_few_missing_points_are_counted_as_misses(tmp_path):
    log = read_log(survey(tmp_path, part=0.97))
    (space,) = logged_spaces.spaces_of(log)
    runs = [simulate.play(space, "random", {}, seed) for seed in range(5)]
    assert sum(run.missed for run in runs) > 0
    assert all(run.missed <= 0.1 * run.trials for run in runs)


def test_a_run_that_never_reaches_the_goal_counts_with_the_size_of_the_space(log):
    read = read_log(log)
    result = simulate.simulate(read, {"random": {}}, seeds=range(4), trials=3)
    mean = result.mean("random", 0.99)
    assert (mean.reached, mean.runs) == (0, 4)
    assert mean.mean == mean.low == mean.high == pytest.approx(180)


def test_means_are_geometric_with_a_bootstrap_interval():
    mean, low, high = simulate.interval([[10.0, 1000.0]])
    assert mean == pytest.approx(100)
    assert (low, high) == pytest.approx((10, 1000))
    rng = np.random.default_rng(1)
    values = np.exp(rng.normal(3.0, 0.5, 400))
    mean, low, high = simulate.interval([values])
    assert low < mean < high
    # 1.96 standard errors of the mean of logarithms to either side
    assert np.log(high / low) == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(400), rel=0.15)
    # each space weighs the same, however many runs it has
    assert simulate.interval([[10.0], [1000.0] * 9])[0] == pytest.approx(100)


def test_default_schedules_alone_are_not_a_space(tmp_path):
    with pytest.raises(TvmtuneError, match="holds no trials of a search"):
        logged_spaces.spaces_of(read_log(survey(tmp_path, part=0.1, tuner="default")))


def test_a_log_of_another_tvm_is_rejected(log, tmp_path):
    text = log.read_text().replace('"apache-tvm":"', '"apache-tvm":"9.')
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(TvmtuneError, match="measured with apache-tvm 9.0.27.*with the TVM of the"):
        logged_spaces.spaces_of(read_log(tmp_path / "other.json"))


@pytest.mark.parametrize("damage", ["module", "args", "task"])
def test_a_damaged_task_is_an_error(log, tmp_path, damage):
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if line["type"] == "task" and damage == "module":
            line["implementations"][-1]["module"] = "AAAA"
        elif line["type"] == "task" and damage == "args":
            del line["args"]
    if damage == "task":
        lines = [line for line in lines if line["type"] != "task"]
    path = tmp_path / "damaged.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(TvmtuneError, match=r"lacks data to rebuild task"):
        logged_spaces.spaces_of(read_log(path))


def test_devices_are_kept_apart(log, tmp_path):
    """Two logs in one: measurements from another device are another space."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[0]["device"] |= {"identity": "0" * 16, "model": "another"}
    both = tmp_path / "both.json"
    both.write_text(log.read_text() + "".join(json.dumps(line) + "\n" for line in lines))
    spaces = logged_spaces.spaces_of(read_log(both))
    assert [s.device["model"] for s in spaces][1] == "another"
    assert [s.size for s in spaces] == [180, 180]


def test_a_compressed_log_is_the_same(log, tmp_path, space):
    packed = tmp_path / "full.json.gz"
    with log.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    (other,) = logged_spaces.spaces_of(read_log(packed))
    assert other.latency == space.latency


def test_options_go_to_the_tuners_that_have_them():
    found = simulate.check(["gridsearch", "GA", "metaschedule"], {"mutate": 0.5})
    assert found == {"grid": {}, "ga": {"mutate": 0.5}, "metaschedule": {}}


@pytest.mark.parametrize(
    ("wanted", "options", "message"),
    [
        (["xbg"], {}, "tuner 'xbg' is not known. Did you mean xgb"),
        (["metashedule"], {}, "'metashedule' is not known. Did you mean metaschedule"),
        (
            ["ga"],
            {"mutat": 0.5},
            "--tuner-option mutat: ga has no such option. Did you mean mutate",
        ),
        (
            ["random", "grid"],
            {"mutate": 0.5},
            "random and grid have no such option. There are none",
        ),
        (["metaschedule"], {"population": 8}, "metaschedule has no such option. There are none"),
        (["ga", "random"], {"mutate": 7}, "--tuner-option mutate=7"),
    ],
)
def test_unknown_tuners_and_options_are_rejected(wanted, options, message):
    with pytest.raises(UsageError, match=message):
        simulate.check(wanted, options)
