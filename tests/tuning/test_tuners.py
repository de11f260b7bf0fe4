"""Tuners propose what can be built, and never the same twice."""

from __future__ import annotations

from typing import Any

import pytest

from tuning import small
from tvmtune.errors import UsageError
from tvmtune.graph import traces
from tvmtune.records.identity import structure
from tvmtune.tuning.model import CostModel
from tvmtune.tuning.tuners import TUNERS, canonical, create
from tvmtune.tuning.tuners.base import TunerArgs


def arguments(mod: Any, known: set[str], seed: int = 1, history: Any = ()) -> TunerArgs:
    import tvm

    return TunerArgs(
        implementation=small.task(0, mod).implementations[0],
        target=tvm.target.Target(small.device().target),
        model=CostModel(seed=seed),
        known=known,
        seed=seed,
        threads=1,
        history=history,
    )


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
def test_failures_are_no_obstacle(name):
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


@pytest.mark.parametrize("alias", ["xgb", "XGB", "xgb-rank", "evolutionary"])
def test_old_names_are_understood(alias):
    assert canonical(alias) == "xgb"


@pytest.mark.parametrize(("wrong", "meant"), [("xbg", "xgb"), ("randm", "random")])
def test_an_unknown_tuner_is_refused_with_the_nearest_name(wrong, meant):
    with pytest.raises(UsageError, match=f"tuner '{wrong}' is not known. Did you mean .*{meant}"):
        canonical(wrong)
