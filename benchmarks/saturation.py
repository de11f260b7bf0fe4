"""Find which part of a device farm saturates first: builders, boards, or the tuning machine.

python benchmarks/saturation.py [--builders 8] [--boards 8,16,32,64] [--build-seconds 0.5]
[--run-seconds 2.0] [--rounds 4]

A Dask cluster builds and boards measure. All are real processes on this machine, except that they
sleep for as long as the work would take. The measurer, with its queue, board workers, uploads and
deadlines, is the real one. For each number of boards, prints candidates per minute and the share of
its capacity that each part used; 1.00 is saturated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from boards import HOST, KEY, Farm, free_ports

HERE = Path(__file__).parent
ROUND = 64
"""Candidates per round, as in a session."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--builders", type=int, default=8)
    parser.add_argument("--boards", default="8,16,32,64")
    parser.add_argument("--build-seconds", type=float, default=0.5)
    parser.add_argument("--run-seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    counts = sorted(int(count) for count in options.boards.split(","))
    farm = Farm(counts[0])
    with tempfile.TemporaryDirectory(prefix="saturation-") as folder:
        cluster = Cluster(Path(folder), options.builders)
        try:
            print(
                f"{options.builders} builders of {options.build_seconds} s, boards of "
                f"{options.run_seconds} s a candidate\n\n"
                "| boards | candidates a minute | builders | boards | this machine |\n|"
                + "---|"
                * 5,
                flush=True,
            )
            measure(farm, cluster, counts, options)
        finally:
            cluster.end()
            farm.end()


def measure(farm: Farm, cluster: Cluster, counts: list[int], options: Any) -> None:
    from tvmtune import host
    from tvmtune.measure.measurer import Measurer
    from tvmtune.types import BuilderSpec, RunnerSpec, Timing

    remote = f"{KEY}@{farm.tracker}"
    attrs = {"mcpu": "generic", "threads": "1"}
    device = host.backend("cpu").make_target(attrs, remote)
    builder = BuilderSpec(build="asleep:build", options={"seconds": options.build_seconds})
    runner = RunnerSpec(
        run="asleep:run",
        check="asleep:run",
        exclusive=False,
        options={"threads": 1, "seconds": options.run_seconds},
    )
    started = counts[0]
    with Measurer(device, builder, runner, Timing(), build_cluster=cluster.address) as measurer:
        for count in counts:
            farm.add(free_ports(count - started))
            started = count
            rounds(measurer, max(2, count // 8))  # each board worker's process imports TVM first
            load = psutil.cpu_times()
            began = time.monotonic()
            done = rounds(measurer, options.rounds)
            seconds = time.monotonic() - began
            print(
                f"| {count} | {60 * done / seconds:.0f} "
                f"| {done * options.build_seconds / options.builders / seconds:.2f} "
                f"| {done * options.run_seconds / count / seconds:.2f} "
                f"| {busy(load) / (psutil.cpu_count() or 1) / seconds:.2f} |",
                flush=True,
            )


def rounds(measurer: Any, count: int) -> int:
    """Build and measure ``count`` rounds, each built while the one before is measured; returns the
    number of candidates."""
    wanted = [(workload(), None)] * ROUND
    ended: list[Any] = []

    def ends(_: int, result: Any) -> None:
        if result.stage:
            raise SystemExit(f"{result.stage}: {result.message}")
        ended.append(result)

    batch = measurer.build(wanted)
    for number in range(count):
        following = measurer.build(wanted) if number + 1 < count else None
        measurer.time(batch, ends)
        batch = following
    return len(ended)


def workload() -> Any:
    """A workload for the builders to read."""
    import tvm
    from tvm import te

    from tvmtune.types import Implementation

    if "mod" not in _made:
        x = te.placeholder((1024,), "float32", name="x")
        func = te.create_prim_func([x, te.compute((1024,), lambda i: x[i] * 2.0, name="y")])
        _made["mod"] = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return Implementation("direct", "workload", _made["mod"], None)  # type: ignore[arg-type]


_made: dict[str, Any] = {}


def busy(before: Any) -> float:
    """CPU seconds of all processors since ``before``."""
    now = psutil.cpu_times()
    return sum(getattr(now, k) - getattr(before, k) for k in ("user", "system", "nice"))


class Cluster:
    """A Dask scheduler and workers with one thread each."""

    def __init__(self, folder: Path, builders: int) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        self._start(
            "scheduler", "--host", HOST, "--port", "0", "--no-dashboard",
            "--scheduler-file", str(file),
        )  # fmt: skip
        while not file.exists() or not file.read_text():
            time.sleep(0.2)
        self.address = str(json.loads(file.read_text())["address"])
        self._start(
            "worker", self.address, "--nworkers", str(builders), "--nthreads", "1",
            "--no-dashboard", "--local-directory", str(folder),
        )  # fmt: skip

    def _start(self, *words: str) -> None:
        dask = str(Path(sys.executable).parent / "dask")
        quiet = subprocess.DEVNULL
        self._started.append(subprocess.Popen([dask, *words], stdout=quiet, stderr=quiet))

    def end(self) -> None:
        for process in reversed(self._started):
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    main()
