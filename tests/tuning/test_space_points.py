"""The points of a space: schedules, mutation, vectors."""

from __future__ import annotations

import math
import random

import pytest

from tuning import small
from tvmtune.passes.workload_keys import structure
from tvmtune.spaces import traces
from tvmtune.spaces.template_space import TemplateSpace
from tvmtune.tuning.space_points import Point, PointSpace
from tvmtune.types import Implementation


def tiled(sch):
    """Two tiles and a choice."""
    block = sch.get_sblock("c")
    i, j, k = sch.get_loops(block)
    a = sch.split(i, sch.sample_perfect_tile(i, n=2, max_innermost_factor=4))
    b = sch.split(j, sch.sample_perfect_tile(j, n=3, max_innermost_factor=8))
    sch.reorder(a[0], b[0], b[1], k, a[1], b[2])
    sch.annotate(b[0], "pragma_auto_unroll_max_step", sch.sample_categorical([0, 64], [0.5, 0.5]))


def chained(sch):
    """The second tile splits the outer loop of the first."""
    i, _, _ = sch.get_loops(sch.get_sblock("c"))
    outer, _ = sch.split(i, sch.sample_perfect_tile(i, n=2))
    sch.split(outer, sch.sample_perfect_tile(outer, n=2))


def pooling():
    """Sums of 3 neighbors in a padded row: where to pad is sampled."""
    import tvm
    from tvm import te

    a = te.placeholder((16, 32), name="a")
    pad = te.compute(
        (16, 34), lambda i, j: te.if_then_else((j > 0) & (j < 33), a[i, j - 1], 0.0), name="pad"
    )
    k = te.reduce_axis((0, 3), name="k")
    b = te.compute((16, 32), lambda i, j: te.sum(pad[i, j + k], axis=k), name="b")
    return tvm.IRModule({"main": te.create_prim_func([a, b])})


def points_of(mod, template=None) -> PointSpace:
    import tvm

    target = tvm.target.Target(small.device().target)
    if template is None:
        implementation = small.task(0, mod).implementations[0]
    else:
        implementation = Implementation("t", "k", mod, TemplateSpace(template, mod, target))
    return PointSpace(implementation, target, seed=1, threads=1)


@pytest.fixture(scope="module")
def template_points() -> PointSpace:
    return points_of(small.matmul(8), tiled)


@pytest.fixture(scope="module")
def rule_points() -> PointSpace:
    return points_of(small.matmul(8))


@pytest.mark.slow
def test_the_size_is_the_number_of_points(template_points):
    every = list(template_points)
    # 8 = a x b with b <= 4; 32 = a x b x c with c <= 8; two steps of unrolling
    assert len(every) == len(set(every)) == template_points.size == 3 * (6 + 5 + 4 + 3) * 2


def test_each_point_is_another_program(template_points):
    some = random.Random(0).sample(list(template_points), 20)
    programs = {structure(template_points.instantiate(p, 1)[0].mod) for p in some}
    assert len(programs) == 20


def test_the_size_of_a_space_with_loop_locations_is_not_known():
    points = points_of(pooling())
    assert points.size is None
    assert len(set(points)) > 4  # those that TVM's sampler was seen to take


def test_locations_are_left_to_tvm_until_they_are_known():
    points = points_of(pooling())
    drawn = points.draw(random.Random(1))
    assert None in drawn.decisions
    _, taken = points.instantiate(drawn, 1)
    assert None not in taken.decisions


@pytest.mark.parametrize("name", ["template_points", "rule_points"])
def test_a_recorded_trace_leads_back_to_its_point(name, request):
    points = request.getfixturevalue(name)
    rng = random.Random(3)
    for _ in range(12):
        found = points.instantiate(points.draw(rng), rng.randrange(1, 1000))
        if found is None:
            continue
        schedule, point = found
        assert points.recall(traces.to_json(schedule)) == point
        again, same = points.instantiate(point, 99)
        assert same == point
        assert structure(again.mod) == structure(schedule.mod)


def test_decisions_that_others_made_impossible_are_repaired():
    points = points_of(small.matmul(8), chained)
    # 8 = 1 x 8 leaves nothing for a second factor of 4
    _, point = points.instantiate(Point(0, ((1, 8), (2, 4))), 1)
    assert [math.prod(tile) for tile in point.decisions] == [8, 1]


def test_a_mutation_changes_one_decision_and_keeps_the_extent(template_points):
    rng = random.Random(5)
    for _ in range(50):
        before = template_points.draw(rng)
        after = template_points.mutate(before, rng)
        changed = [(a, b) for a, b in zip(before.decisions, after.decisions, strict=True) if a != b]
        assert len(changed) == 1
        if isinstance(changed[0][0], tuple):
            assert math.prod(changed[0][0]) == math.prod(changed[0][1])


def test_mutations_reach_the_whole_space(template_points):
    rng = random.Random(7)
    point = template_points.draw(rng)
    reached = {point}
    for _ in range(6000):
        point = template_points.mutate(point, rng)
        reached.add(point)
    assert reached == set(template_points)


def test_children_have_each_decision_from_a_parent(template_points):
    rng = random.Random(9)
    one, other = template_points.draw(rng), template_points.draw(rng)
    for _ in range(20):
        child = template_points.cross(one, other, rng)
        assert all(
            c in parents
            for c, *parents in zip(child.decisions, one.decisions, other.decisions, strict=True)
        )


def test_neighbors_are_mutual_and_differ_in_one_knob(template_points):
    for point in random.Random(2).sample(list(template_points), 10):
        for near in template_points.neighbors(point):
            assert sum(a != b for a, b in zip(point.decisions, near.decisions, strict=True)) == 1
            assert point in template_points.neighbors(near)


@pytest.mark.parametrize("name", ["template_points", "rule_points"])
def test_vectors_tell_points_apart(name, request):
    points = request.getfixturevalue(name)
    rng = random.Random(4)
    drawn = list({points.instantiate(points.draw(rng), 1)[1] for _ in range(12)})
    rows = {row.tobytes() for row in points.vectors(drawn)}
    assert len(rows) == len(drawn)


def test_vectors_of_similar_workloads_have_equal_columns():
    one, other = points_of(small.matmul(8)), points_of(small.matmul(32))
    assert one.signature == other.signature
    rng = random.Random(1)
    widths = {p.vectors([p.draw(rng)]).shape[1] for p in (one, other)}
    assert len(widths) == 1


def test_the_trace_of_another_workload_keeps_its_inner_tiles():
    """A tile of 8x2x16 in 256 stays 2x16 within, where the extent allows it."""
    small_space, large = points_of(small.matmul(8)), points_of(small.matmul(64))
    rng = random.Random(11)
    for _ in range(8):
        found = large.instantiate(large.draw(rng), 1)
        schedule, theirs = found
        mine = small_space.adapt(traces.to_json(schedule))
        assert small_space.instantiate(mine, 1) is not None
        for wanted, got in zip(theirs.decisions, mine.decisions, strict=True):
            if isinstance(wanted, tuple) and math.prod(wanted) == math.prod(got):
                assert wanted == got
            elif isinstance(wanted, tuple):
                assert got[-1] <= wanted[-1] or math.prod(got) > math.prod(wanted)


def test_a_trace_of_other_knobs_cannot_be_adapted(template_points):
    schedule, _ = points_of(small.addition(4)).instantiate(
        points_of(small.addition(4)).draw(random.Random(1)), 1
    )
    assert template_points.recall(traces.to_json(schedule)) is None
    assert template_points.adapt(traces.to_json(schedule)) is None
