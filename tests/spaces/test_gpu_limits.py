"""The analytical limits reject only points that TVM rejects after lowering."""

from __future__ import annotations

import random

import pytest
import tvm

from kernels import kernel, one_conv, prepared
from operators.test_gemm import H100, LONG
from tvmtune.operators.implementations import IMPLICIT_GEMM, SPLIT_K, WINOGRAD
from tvmtune.passes.workload_keys import workload_key
from tvmtune.spaces import rule_space
from tvmtune.spaces.gpu_spaces import GpuSpace, RegisterTiles
from tvmtune.tuning.space_points import Point, PointSpace
from tvmtune.types import Implementation

EARLIER = H100 | {"arch": "sm_75"}
CASES = {
    "direct": (one_conv((1, 32, 14, 14), 32), None, GpuSpace(H100)),
    "strided": (one_conv((1, 32, 28, 28), 32, stride=2), None, GpuSpace(H100)),
    "batch": (one_conv((4, 32, 8, 8), 32, dilation=2, pads=(2, 2, 2, 2)), None, GpuSpace(H100)),
    "earlier": (one_conv((1, 32, 14, 14), 32), None, GpuSpace(EARLIER)),
    "implicit-gemm": (one_conv((1, 32, 14, 14), 32), IMPLICIT_GEMM, GpuSpace(H100)),
    "split-k": (one_conv(**LONG), SPLIT_K, GpuSpace(H100)),
    "winograd": (one_conv((1, 32, 14, 14), 32), WINOGRAD, GpuSpace(H100)),
    "register-tiles": (one_conv((1, 64, 14, 14), 64, groups=64), None, RegisterTiles(H100)),
}


def points(name: str) -> PointSpace:
    model, algorithm, space = CASES[name]
    mod = kernel(prepared(model), algorithm)
    each = Implementation(name, workload_key(mod), mod, space)
    return PointSpace(each, tvm.target.Target(space.target), seed=1, threads=1)


def random_point(space: PointSpace, rng: random.Random) -> Point:
    """A uniformly random point, which may exceed the limits."""
    number = rng.randrange(len(space._designs))
    knobs = space._designs[number].knobs
    return Point(number, tuple(rng.choice(k.options) for k in knobs))


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_only_points_that_fail_to_build_are_rejected(name, monkeypatch):
    space, rng = points(name), random.Random(1)
    sample = [random_point(space, rng) for _ in range(40)]
    rejected = [point for point in sample if not space.fits(point)]
    assert rejected
    monkeypatch.setattr(PointSpace, "fits", lambda self, point: True)
    assert all(space.instantiate(point, 1) is None for point in rejected)


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_sampled_points_fit_and_mostly_build(name):
    space, rng = points(name), random.Random(1)
    sample = [space.draw(rng) for _ in range(8)]
    assert all(space.fits(point) for point in sample)
    assert sum(space.instantiate(point, 1) is not None for point in sample) >= 4


def test_neighbors_fit():
    space, rng = points("direct"), random.Random(1)
    near = space.neighbors(space.draw(rng))
    assert near
    assert all(space.fits(point) for point in near)


def test_cpus_have_no_limits():
    network = prepared(one_conv())
    mod = kernel(network)
    space = rule_space.RuleSpace(network.device.target)
    each = Implementation("direct", workload_key(mod), mod, space)
    cpu_points = PointSpace(each, tvm.target.Target(network.device.target), seed=1, threads=1)
    assert all(design.limits is None for design in cpu_points._designs)
