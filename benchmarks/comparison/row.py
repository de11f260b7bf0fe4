"""Measure one row: all libraries and peers of a network in turns, in this process.

    python -m comparison.row JOB.json

Reads a job, prints a row's figures as JSON. A runtime that crashes ends this process: before a peer
loads the network its name is written to the file ``stage``, so that whoever started the process knows
whom to leave out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCALES = (1.0, 1e-3, 1e3)
"""Factors of the inputs with which errors are measured: activation functions and normalizations differ
most where their arguments are small or large."""


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    from tvmtune.machine import cpu_count

    cpu_count.set_threads(job["threads"])  # before any runtime is imported
    row = measure(job)
    print(json.dumps(row, allow_nan=False))


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Figures of the runtimes, the roofline, and the layers of each library.

    ``job``: ``libraries``, paths by kind; names of ``peers``; ``threads``; ``repeat``; ``seed``; and
    the path ``stage``.
    """
    from comparison import roofline
    from tvmtune import networks
    from tvmtune.bench.baselines import Baseline
    from tvmtune.bench.bench import bench
    from tvmtune.bench.peers import peer
    from tvmtune.bench.verify import run_check
    from tvmtune.runtime.library import Library

    stage = Path(job["stage"])
    libraries = {
        kind: Library.open(path, job["threads"]) for kind, path in job["libraries"].items()
    }
    first, *others = libraries
    own = libraries[first]
    weights = min(Path(path).stat().st_size for path in job["libraries"].values())
    peak = roofline.measure(own.metadata, job["threads"], weights)
    checks = {kind: run_check(each, each.metadata["check"]) for kind, each in libraries.items()}

    ours = []
    for kind in others:
        baseline = Baseline(libraries[kind])
        baseline.name = kind
        ours.append(baseline)
    peers = [_announced(peer(name), stage) for name in job["peers"]]
    network = networks.reload(own.metadata["network"]["source"])
    inputs = own.random_inputs(job["seed"])
    result = bench(own, inputs=inputs, repeat=job["repeat"], peers=[*ours, *peers], network=network)
    result.runs[0].runtime = first
    runtimes = {first: own, **{each.name: each for each in (*ours, *peers)}}
    rows = []
    for run in result.runs:
        figures = run.to_json()
        for name in ("ratio", "error", "device_ms"):
            del figures[name]
        figures["errors"] = errors(runtimes[run.runtime].run, network.reference, inputs)
        if run.runtime in checks:
            figures["check"] = checks[run.runtime].to_json()
        rows.append(figures)
    return {
        "runs": rows,
        "notes": result.notes,
        "background_load": result.background_load,
        "peak": peak,
        "isa": own.metadata["cpu_features"],
        "tasks": own.metadata["tasks"]["total"],
        "layers": {
            kind: roofline.layers(each.profile(inputs), each.metadata)
            for kind, each in libraries.items()
        },
    }


def errors(
    run: Callable[[Any], Any], reference: Callable[[Any], Any], inputs: dict[str, Any]
) -> dict[str, float | None]:
    """max|y - ref| / max|ref| by the factor of the inputs; None where values are not finite or shapes
    differ. Integer inputs are not scaled; without others there is one factor, 1."""
    from tvmtune.accuracy import relative_error

    floats = {name for name, array in inputs.items() if array.dtype.kind == "f"}
    found: dict[str, float | None] = {}
    for scale in SCALES if floats else SCALES[:1]:
        scaled = {
            name: (array * scale).astype(array.dtype) if name in floats else array
            for name, array in inputs.items()
        }
        worst = 0.0
        for got, want in zip(run(scaled), reference(scaled), strict=True):
            same = got.shape == want.shape
            worst = max(worst, relative_error(got, want) if same else float("inf"))
        found[f"{scale:g}"] = worst if worst < float("inf") else None
    return found


def _announced(peer: Any, stage: Path) -> Any:
    """The peer; while it loads the network and first runs it, its name is in the file ``stage``."""
    load, run = peer.load, peer.run

    def announced_load(*arguments: Any) -> None:
        stage.write_text(peer.name)
        try:
            load(*arguments)
        except Exception:
            stage.write_text("")
            raise

    def announced_run(inputs: Any) -> Any:
        stage.write_text(peer.name)
        try:
            return run(inputs)
        finally:
            stage.write_text("")

    peer.load, peer.run = announced_load, announced_run
    return peer


if __name__ == "__main__":
    main()
