"""A log with every point of a space and synthetic latencies: nothing is built or run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune import api
from tvmtune.records import header
from tvmtune.records.log import LogWriter
from tvmtune.tuning.space_points import PointSpace
from tvmtune.tuning.tuners.base import Proposal
from tvmtune.types import Trial

if TYPE_CHECKING:
    from tvmtune.tuning.space_points import Point

KERNEL = """
from tvm import te

import tvmtune


@tvmtune.operator
def product(n: int = 32):
    a = te.placeholder((n, 16), name="a")
    b = te.placeholder((16, n), name="b")
    k = te.reduce_axis((0, 16), name="k")
    return [a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")]


@product.reference
def in_numpy(a, b):
    return a @ b


@product.template("cpu")
def on_cpu(sch):
    i, j, k = sch.get_loops(sch.get_sblock("c"))
    rows, row = sch.split(i, sch.sample_perfect_tile(i, n=2, max_innermost_factor=32))
    outs, lanes = sch.split(j, sch.sample_perfect_tile(j, n=2, max_innermost_factor=32))
    chunks, part = sch.split(k, sch.sample_perfect_tile(k, n=2, max_innermost_factor=16))
    sch.reorder(rows, outs, chunks, part, row, lanes)
    sch.parallel(rows)
    sch.vectorize(lanes)
"""
"""180 points: 6 ways to cut the rows, 6 for the columns, 5 for the sum."""
BEST = ((8, 4), (2, 16), (4, 4))
"""The fastest point; the next reaches two thirds of its speed."""


def seconds(point: Point) -> float:
    """A smooth function of the distance from :data:`BEST`."""
    tiles = [d for d in point.decisions if isinstance(d, tuple)]
    apart = sum(abs(math.log2(tile[1] / best[1])) for tile, best in zip(tiles, BEST, strict=True))
    return 1e-3 * (1 + apart / 2)


def survey(
    folder: Path,
    *,
    part: float = 1.0,
    failing: bool = False,
    tuner: str = "grid",
    n: int = 32,
    code: str = KERNEL,
) -> Path:
    """Write a log with the first ``part`` of the points; with ``failing`` every third has failed."""
    import tvm

    kernel = folder / "product.py"
    kernel.write_text(code)
    plan = api.plan(api.load(str(kernel), arguments={"n": n}), "cpu")
    task = plan.tasks[0]
    template = task.implementation("template")
    points = PointSpace(template, tvm.target.Target(plan.device.target), seed=1, threads=1)
    path = folder / "full.json"
    every = list(points)
    with LogWriter(path) as writer:
        header.begin(writer, plan.prepared, plan.tasks, None, None)
        for number, point in enumerate(every[: int(part * len(every))]):
            found = points.instantiate(point, 1)
            assert found is not None
            proposal = Proposal.of(found[0])
            fails = failing and number % 3 == 0 and seconds(point) > 1e-3
            writer.trial(
                Trial(
                    task=task.key,
                    implementation="template",
                    workload=template.workload_key,
                    candidate=proposal.candidate,
                    trace=proposal.trace,
                    seconds=[] if fails else [seconds(point)],
                    error={"stage": "run", "message": "no"} if fails else None,
                    tuner=tuner,
                    device=plan.device.identity(),
                )
            )
    return path
