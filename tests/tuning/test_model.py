"""The cost model."""

from __future__ import annotations

import numpy as np
import pytest

from tvmtune.tuning.model import MIN_SAMPLES, CostModel


def rows(count: int, seed: int = 0) -> list[np.ndarray]:
    """One row of two columns for each candidate; the first column determines its speed."""
    drawn = np.random.RandomState(seed).uniform(size=(count, 2)).astype("float32")
    return [row[None] for row in drawn]


def seconds(found: list[np.ndarray]) -> list[float]:
    return [1e-3 * (1.1 - float(row[0, 0])) for row in found]


def right_order(model: CostModel) -> float:
    """Fraction of pairs that the scores order correctly."""
    new = rows(40, seed=9)
    scores, wanted = model.score(new), np.array(seconds(new))
    pairs = [(a, b) for a in range(40) for b in range(a)]
    return float(np.mean([(scores[a] > scores[b]) == (wanted[a] < wanted[b]) for a, b in pairs]))


def test_scores_are_random_until_a_few_candidates_are_known():
    model = CostModel(seed=1)
    model.learn(rows(MIN_SAMPLES - 1), seconds(rows(MIN_SAMPLES - 1)), "w")
    assert not model.ready
    model.learn(rows(60, seed=2), seconds(rows(60, seed=2)), "w")
    assert model.ready
    assert right_order(model) > 0.9


def test_workloads_with_the_same_knobs_learn_from_each_other():
    model = CostModel(seed=1)
    first, second = model.of_points("tiles", "w1"), model.of_points("tiles", "w2")
    first.learn(rows(60), seconds(rows(60)), "w1")
    assert len(second.training_set) == 60
    assert right_order(second) > 0.9
    assert not model.of_points("other tiles", "w3").ready


def test_only_ratios_within_a_workload_are_learned():
    """Another workload takes a thousand times as long, in the same order."""
    model = CostModel(seed=1, focus="small")
    model.learn(rows(60), [1e3 * s for s in seconds(rows(60))], "large")
    assert right_order(model) > 0.9, "nothing else is known yet"
    model.learn(rows(4, seed=3), seconds(rows(4, seed=3)), "small")
    assert right_order(model) > 0.8


def test_the_model_is_refitted_to_revised_measurements():
    model = CostModel(seed=1)
    found = rows(40)
    times = seconds(found)
    names = [f"c{n}" for n in range(40)]
    model.learn(found, times, "w", names)
    before = model.score(found)
    # The quickest turns out to be wrong: nothing may be measured against it any more.
    quickest = int(np.argmin(times))
    model.revise("w", names[quickest], float("inf"))
    after = model.score(found)
    assert after[quickest] < 0.3 < before[quickest]
    second = int(np.argsort(times)[1])
    assert after[second] == pytest.approx(1.0, abs=0.1)
    model.revise("w", "unknown", 1.0)


def test_the_model_follows_the_workload_in_focus():
    """Many measurements of other workloads must not outvote new ones of this workload."""
    model = CostModel(seed=1, focus="mine")
    model.learn(rows(200), [1e-3] * 200, "other")
    assert model.ready
    model.learn(rows(60, seed=2), seconds(rows(60, seed=2)), "mine")
    assert right_order(model) > 0.8
