"""What is refused by its numbers alone is what TVM refuses after lowering it."""

from __future__ import annotations

import random

import pytest
import tvm

from graph.kernels import kernel, one_conv, prepared
from graph.test_gemm import CUT, H100, LONG, WHOLE
from tvmtune.graph import spaces
from tvmtune.graph.algorithms import ALGORITHMS
from tvmtune.graph.gpu_spaces import GpuSpace, RegisterTiles
from tvmtune.records.identity import workload_key
from tvmtune.tuning.points import Point, Points
from tvmtune.types import Implementation

WINOGRAD = ALGORITHMS[0]
EARLIER = H100 | {"arch": "sm_75"}
CASES = {
    "direct": (one_conv((1, 32, 14, 14), 32), None, GpuSpace(H100)),
    "strided": (one_conv((1, 32, 28, 28), 32, stride=2), None, GpuSpace(H100)),
    "batch": (one_conv((4, 32, 8, 8), 32, dilation=2, pads=(2, 2, 2, 2)), None, GpuSpace(H100)),
    "earlier": (one_conv((1, 32, 14, 14), 32), None, GpuSpace(EARLIER)),
    "implicit-gemm": (one_conv((1, 32, 14, 14), 32), WHOLE, GpuSpace(H100)),
    "split-k": (one_conv(**LONG), CUT, GpuSpace(H100)),
    "winograd": (one_conv((1, 32, 14, 14), 32), WINOGRAD, GpuSpace(H100)),
    "register-tiles": (one_conv((1, 64, 14, 14), 64, groups=64), None, RegisterTiles(H100)),
}


def points(name: str) -> Points:
    model, algorithm, space = CASES[name]
    mod = kernel(prepared(model), algorithm)
    each = Implementation(name, workload_key(mod), mod, space)
    return Points(each, tvm.target.Target(space.target), seed=1, threads=1)


def drawn(found: Points, rng: random.Random) -> Point:
    """Uniformly, whether it fits or not."""
    number = rng.randrange(len(found._designs))
    knobs = found._designs[number].knobs
    return Point(number, tuple(rng.choice(k.options) for k in knobs))


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_refused_that_could_be_built(name, monkeypatch):
    found, rng = points(name), random.Random(1)
    wanted = [drawn(found, rng) for _ in range(40)]
    refused = [point for point in wanted if not found.fits(point)]
    assert refused
    monkeypatch.setattr(Points, "fits", lambda self, point: True)
    assert all(found.realise(point, 1) is None for point in refused)


@pytest.mark.parametrize("name", CASES)
def test_what_is_drawn_fits_and_can_mostly_be_built(name):
    found, rng = points(name), random.Random(1)
    wanted = [found.draw(rng) for _ in range(8)]
    assert all(found.fits(point) for point in wanted)
    assert sum(found.realise(point, 1) is not None for point in wanted) >= 4


def test_neighbours_fit():
    found, rng = points("direct"), random.Random(1)
    near = found.neighbours(found.draw(rng))
    assert near
    assert all(found.fits(point) for point in near)


def test_cpus_have_no_such_limits():
    found = prepared(one_conv())
    mod = kernel(found)
    space = spaces.RuleSpace(found.device.target)
    each = Implementation("direct", workload_key(mod), mod, space)
    made = Points(each, tvm.target.Target(found.device.target), seed=1, threads=1)
    assert all(design.limits is None for design in made._designs)
