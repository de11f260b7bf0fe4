"""Tuners: proposals, seeds, warm start, options."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from tuning import small
from tuning.test_space_points import tiled
from tvmtune.errors import UsageError
from tvmtune.passes.workload_keys import structure
from tvmtune.spaces import traces
from tvmtune.spaces.template_space import TemplateSpace
from tvmtune.tuning.model import CostModel
from tvmtune.tuning.tuners import TUNERS, canonical, check_options, check_space, create
from tvmtune.tuning.tuners.base import TunerArgs
from tvmtune.types import Implementation, Trial


def arguments(
    mod: Any, known: set[str], seed: int = 1, history: Any = (), threads: int = 1
) -> TunerArgs:
    import tvm

    return TunerArgs(
        implementation=small.task(0, mod).implementations[0],
        target=tvm.target.Target(small.device().target),
        model=CostModel(seed=seed),
        known=known,
        seed=seed,
        threads=threads,
        history=history,
    )


@pytest.mark.sweep
@pytest.mark.parametrize("name", TUNERS)
def test_no_candidate_is_proposed_twice(name):
    known: set[str] = set()
    tuner = create(name, arguments(small.matmul(8), known))
    seen: list[str] = []
    for _ in range(4):
        proposals = tuner.ask(8)
        assert 0 < len(proposals) <= 8
        seen += [p.candidate for p in proposals]
        tuner.tell(proposals, [1e-5 * len(p.candidate) for p in proposals])
    assert len(set(seen)) == len(seen)
    # neither by one that starts afresh, as after a resume
    again = create(name, arguments(small.matmul(8), set(seen))).ask(16)
    assert again
    assert not {p.candidate for p in again} & set(seen)


@pytest.mark.parametrize("name", TUNERS)
def test_a_small_space_is_exhausted(name):
    known: set[str] = set()
    tuner = create(name, arguments(small.addition(4), known))
    for _ in range(40):
        proposals = tuner.ask(8)
        if not proposals:
            break
        tuner.tell(proposals, [1e-6] * len(proposals))
    assert tuner.ask(8) == []
    assert known


@pytest.mark.parametrize("name", TUNERS)
def test_the_stored_trace_is_the_candidate(name):
    mod = small.matmul(8)
    for proposal in create(name, arguments(mod, set())).ask(4):
        assert structure(traces.apply(mod, proposal.trace).mod) == proposal.candidate


@pytest.mark.parametrize("name", TUNERS)
def test_failures_do_not_stop_a_tuner(name):
    tuner = create(name, arguments(small.matmul(8), set()))
    for _ in range(3):
        proposals = tuner.ask(4)
        tuner.tell(proposals, [float("inf")] * len(proposals))
    assert tuner.ask(4)


def test_random_draws_depend_on_the_seed_alone():
    def draw(seed: int) -> list[str]:
        tuner = create("random", arguments(small.matmul(8), set(), seed))
        return [p.candidate for p in tuner.ask(8)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def templated(mod: Any = None, **given: Any) -> TunerArgs:
    """Of a space of 108 points."""
    import tvm

    mod = mod or small.matmul(8)
    target = tvm.target.Target(small.device().target)
    args = arguments(mod, set(), **given)
    args.implementation = Implementation("t", "key", mod, TemplateSpace(tiled, mod, target))
    return args


def valley(trace: Any) -> float:
    """Seconds on a fictitious machine that prefers tiles of 4 and of 2x8, unrolled."""
    rows, columns, unroll = (value for _, value in trace[1])
    miss = abs(math.log2(rows[1] / 4)) + abs(math.log2(columns[1] / 2))
    miss += abs(math.log2(columns[2] / 8)) + (unroll == 0)
    return 1e-5 * (1 + miss)


def trials_to_the_best(name: str, seed: int, **given: Any) -> int:
    tuner = create(name, templated(seed=seed, **given))
    count = 0
    while proposals := tuner.ask(4):
        latencies = [valley(p.trace) for p in proposals]
        if min(latencies) == 1e-5:
            return count + latencies.index(1e-5) + 1
        count += len(proposals)
        tuner.tell(proposals, latencies)
    raise AssertionError(f"{name} gave up after {count} of 108 points")


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["xgb", "xgb-knob", "ga", "droplet"])
def test_measurements_lead_to_the_best_sooner_than_chance(name):
    """Random search needs half of the space, 54 points."""
    assert statistics.mean(trials_to_the_best(name, seed) for seed in range(4)) < 36


@pytest.mark.sweep
@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("count", [pytest.param(3, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize("name", TUNERS)
def test_every_point_is_found_in_the_end(name, count, threads):
    tuner = create(name, templated(threads=threads))
    found = set()
    while proposals := tuner.ask(count):
        found |= {p.candidate for p in proposals}
        tuner.tell(proposals, [valley(p.trace) for p in proposals])
    assert len(found) == tuner.size == 108


@pytest.mark.parametrize("count", [3, 16])
@pytest.mark.parametrize("name", TUNERS)
def test_a_candidate_of_several_points_is_proposed_once(name, count):
    """The second knob's loops are fused again."""
    import tvm

    def template(sch: Any) -> None:
        rows, columns, _ = sch.get_loops(sch.get_sblock("c"))
        sch.split(rows, sch.sample_perfect_tile(rows, n=2))
        sch.fuse(*sch.split(columns, sch.sample_perfect_tile(columns, n=2)))

    mod = small.matmul(8)
    args = arguments(mod, set())
    target = tvm.target.Target(small.device().target)
    args.implementation = Implementation("t", "key", mod, TemplateSpace(template, mod, target))
    tuner = create(name, args)
    assert tuner.size == 4 * 5
    found: list[str] = []
    while proposals := tuner.ask(count):
        found += [p.candidate for p in proposals]
        tuner.tell(proposals, [1e-5] * len(proposals))
    assert len(found) == len(set(found)) == 4


@pytest.mark.sweep
@pytest.mark.parametrize("name", TUNERS)
def test_proposals_depend_on_the_seed_and_the_results_alone(name):
    def play(seed: int) -> list[str]:
        tuner = create(name, templated(seed=seed))
        played = []
        for _ in range(6):
            proposals = tuner.ask(5)
            tuner.tell(proposals, [valley(p.trace) for p in proposals])
            played += [p.candidate for p in proposals]
        return played

    assert play(3) == play(3)
    assert name == "grid" or play(3) != play(4)


def test_grid_goes_through_the_space_in_order():
    proposals = create("grid", templated()).ask(6)
    rows = [[value for _, value in p.trace[1]] for p in proposals]
    assert rows == sorted(rows, key=lambda r: (r[0][-1], r[1][-1], r[1][-2], r[2]))
    assert [r[2] for r in rows] == [0, 1] * 3  # the last knob is the fastest


def record(proposal: Any, latency: float) -> Trial:
    return Trial("", "t", "key", proposal.candidate, proposal.trace, [latency])


def test_grid_continues_where_a_log_ends():
    first = create("grid", templated()).ask(10)
    args = templated(history=[record(p, 1e-5) for p in first[:7]])
    args.known |= {p.candidate for p in first[:7]}
    assert [p.candidate for p in create("grid", args).ask(3)] == [p.candidate for p in first[7:]]


def test_a_droplet_runs_downhill_from_the_best_point():
    start = create("grid", templated()).ask(1)[0]
    args = templated(history=[record(start, valley(start.trace))])
    args.known.add(start.candidate)
    args.options = {"start": 1}
    for step in create("droplet", args).ask(4):
        pairs = zip(start.trace[1], step.trace[1], strict=True)
        assert sum(before != after for before, after in pairs) == 1


@pytest.mark.parametrize("name", ["xgb", "xgb-knob"])
def test_the_warm_start_is_tried_first(name):
    """Warm start with the best tiles of a matrix four times as large."""
    donor = create("grid", templated(small.matmul(32)))
    every = []
    while proposals := donor.ask(32):
        every += proposals
    best = min(every, key=lambda p: valley(p.trace))
    args = templated()
    args.warm_start = lambda: [best.trace]
    assert min(valley(p.trace) for p in create(name, args).ask(4)) == 1e-5


@pytest.mark.parametrize("name", ["xgb", "xgb-knob"])
def test_the_warm_start_is_tried_whatever_the_model_says(name):
    every = []
    grid = create("grid", templated())
    while proposals := grid.ask(32):
        every += proposals
    best, *others = sorted(every, key=lambda p: valley(p.trace))
    # All that was measured says that the best is the worst.
    history = [record(p, 1 / valley(p.trace)) for p in others[20:60]]
    args = templated(history=history)
    args.known |= {p.candidate for p in others[20:60]}
    args.warm_start = lambda: [best.trace]
    assert best.candidate in {p.candidate for p in create(name, args).ask(4)}


@pytest.mark.parametrize("name", ["xgb", "xgb-knob", "ga", "droplet"])
def test_a_wrong_candidate_has_no_children(name):
    tuner: Any = create(name, templated())
    first = tuner.ask(8)
    tuner.tell(first, [1e-6] + [1e-5] * 7)
    (best,) = tuner.best(1)
    tuner.revise(first[0].candidate, math.inf)
    assert best not in tuner.best(8)
    assert len(tuner.best(8)) == 7


def test_the_search_continues_without_a_model_if_nothing_works():
    args = templated()
    tuner = create("xgb", args)
    for _ in range(4):
        proposals = tuner.ask(8)
        assert len(proposals) == 8
        tuner.tell(proposals, [math.inf] * 8)
    assert "none of the" in args.model.note


@pytest.mark.slow
def test_a_model_that_cannot_be_fitted_leaves_random_search(monkeypatch):
    import xgboost

    def refuse(*_: Any, **__: Any) -> Any:
        raise xgboost.core.XGBoostError("no memory")

    monkeypatch.setattr(xgboost, "train", refuse)
    args = templated()
    tuner = create("xgb", args)
    found = set()
    while proposals := tuner.ask(16):
        found |= {p.candidate for p in proposals}
        tuner.tell(proposals, [valley(p.trace) for p in proposals])
    assert len(found) == 108
    assert args.model.note == "XGBoost cannot be fitted: no memory"


def test_grid_asks_for_a_limit_where_the_size_is_unknown():
    unknown = [small.task(0, small.matmul(8), name="dense")]
    with pytest.raises(UsageError, match="'grid' .* dense has no known size: limit"):
        check_space("gridsearch", unknown, limited=False)
    check_space("grid", unknown, limited=True)
    check_space("xgb", unknown, limited=False)
    args = templated()
    known = small.task(0, small.matmul(8), space=args.implementation.space)
    check_space("grid", [known], limited=False)


def test_an_option_of_another_tuner_is_rejected_with_the_valid_ones():
    with pytest.raises(UsageError, match="'ga' has no such option.*population=24"):
        check_options("ga", {"replays": 2})


@pytest.mark.parametrize(
    ("alias", "name"), [("gridsearch", "grid"), ("xgb_knob", "xgb-knob"), ("genetic", "ga")]
)
def test_names_from_other_tools_are_accepted(alias, name):
    assert canonical(alias) == name


@pytest.mark.parametrize("alias", ["xgb", "XGB", "xgb-rank", "evolutionary"])
def test_old_names_are_accepted(alias):
    assert canonical(alias) == "xgb"


@pytest.mark.parametrize(("wrong", "meant"), [("xbg", "xgb"), ("randm", "random")])
def test_an_unknown_tuner_is_rejected_with_the_nearest_name(wrong, meant):
    with pytest.raises(UsageError, match=f"tuner '{wrong}' is not known. Did you mean .*{meant}"):
        canonical(wrong)
