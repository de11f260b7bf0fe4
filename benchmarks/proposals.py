"""Benchmark proposing candidates for a GPU, with and without the analytical check of limits.

    python benchmarks/proposals.py [--network resnet-18] [--target-attr arch=sm_90] [--tasks 9,13,16]

For each implementation of the tasks, a fresh tuner proposes 16 candidates, in turns with and without
:meth:`tvmtune.tuning.space_points.PointSpace.fits`; without it, TVM lowers every candidate to find out.
Needs nvcc or NVRTC, but no GPU.
"""

from __future__ import annotations

import argparse
import time
from unittest import mock

import tvm

from tvmtune import api
from tvmtune.machine import cpu_count
from tvmtune.tuning.model import CostModel
from tvmtune.tuning.space_points import PointSpace
from tvmtune.tuning.tuners import evolutionary
from tvmtune.tuning.tuners.base import TunerArgs
from tvmtune.types import Implementation

COUNT = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-18")
    parser.add_argument("--target-attr", default="arch=sm_90")
    parser.add_argument("--tasks", default="9,13,16", help="indices, as tvmtune tasks lists them")
    options = parser.parse_args()
    name, _, value = options.target_attr.partition("=")
    plan = api.plan(api.load(options.network), "cuda", attrs={name: value})
    target = tvm.target.Target(plan.device.target)
    print("| task | implementation | with: s | proposals | without: s | proposals |")
    print("|---" * 6 + "|")
    totals = [0.0, 0.0]
    for index in map(int, options.tasks.split(",")):
        for each in plan.tasks[index].implementations:
            cells = []
            for place, always in enumerate((False, True)):
                seconds, found = asked(each, target, always=always)
                totals[place] += seconds
                cells += [f"{seconds:.2f}", str(found)]
            print(f"| {index} | {each.name} | {' | '.join(cells)} |", flush=True)
    print(f"\n{totals[0]:.1f} s with, {totals[1]:.1f} s without")


def asked(
    implementation: Implementation, target: tvm.target.Target, *, always: bool
) -> tuple[float, int]:
    """Seconds and proposals of a fresh tuner; ``always``: everything is taken to fit."""
    args = TunerArgs(
        implementation,
        target,
        CostModel(seed=1),
        known=set(),
        seed=1,
        threads=cpu_count.usable_cpus(),
    )
    began = time.perf_counter()
    with mock.patch.object(PointSpace, "fits", (lambda *_: True) if always else PointSpace.fits):
        found = evolutionary.create(args).ask(COUNT)
    return time.perf_counter() - began, len(found)


if __name__ == "__main__":
    main()
