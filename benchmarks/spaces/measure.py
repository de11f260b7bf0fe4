"""Measure the whole space of an operator's template, for ``tvmtune simulate``.

    python benchmarks/spaces/measure.py benchmarks/spaces/conv3x3.py
    python benchmarks/spaces/measure.py benchmarks/spaces/dense.py

Writes ``conv3x3.json.gz`` next to the kernel file, about 150 KB. The tuner ``grid`` measures only the
template; TVM's own rules, which ``tvmtune tune`` also searches, span an unbounded space. The log stays
in benchmarks/work until it is complete: after an interruption, the same command continues. Each takes
about 15 to 25 minutes on two cores, which should be idle.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from pathlib import Path

from tvmtune import api
from tvmtune.cli import progress
from tvmtune.records.log import read_log
from tvmtune.tuning.budget import Budget, space_size
from tvmtune.tuning.limits import COMPLETE
from tvmtune.tuning.simulation import simulate
from tvmtune.types import Timing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernel", type=Path)
    parser.add_argument("--arg", action="append", default=[], metavar="K=V")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if os.getloadavg()[0] > 0.5:
        print(f"warning: the load is {os.getloadavg()[0]:.2f} already", file=sys.stderr)
    arguments = dict(pair.split("=") for pair in options.arg)
    plan = api.plan(api.load(str(options.kernel), arguments=arguments), "cpu")
    for task in plan.tasks:
        task.implementations = [task.implementation("template")]
    path = options.work / plan.default_log()
    session = api.tune(
        plan,
        path,
        tuner="grid",
        budget=Budget(trials=space_size(plan.tasks)),
        timing=Timing(repeat=options.repeat),
        observer=progress.observer(verbose=False),
    )
    progress.summary(session)
    if session.stopped_because != COMPLETE:
        sys.exit(f"not the whole space: {session.stopped_because}")
    (space,), _ = simulate.full_spaces(read_log(path))
    size = space_size(plan.tasks)
    if space.size != size:
        # Points that come to the same program are measured once; a point that is lost is no joke.
        print(f"{space.size} programs of {size} points", file=sys.stderr)
    output = options.output or options.kernel.with_suffix(".json.gz")
    output.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    print(
        f"{output}: {space.size} points, {space.failed} failed, best {space.best * 1e3:.3f} ms, "
        f"{space.within(0.95)} ({space.within(0.95) / space.size:.2%}) within 95% of it; "
        f"{output.stat().st_size / 1e3:.0f} KB"
    )


if __name__ == "__main__":
    main()
