"""Logs with synthetic trials for the tests of records, without TVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmtune.records.log import FORMAT, LogWriter
from tvmtune.types import Device, Trial


def device(*, threads: int = 2, model: str = "some CPU") -> Device:
    return Device("cpu", {"kind": "llvm", "num-cores": threads}, threads, model=model)


def header(of: Device | None = None, **more: Any) -> dict[str, Any]:
    network = {"name": "net", "structure_hash": "5" * 16, "weights_hash": "6" * 16}
    return {"format": FORMAT, "network": network, "device": (of or device()).to_json(), **more}


def task(key: str) -> dict[str, Any]:
    return {"task": key, "anchor": f"anchor-{key}", "name": f"fused_{key}", "implementations": []}


def trial(key: str, candidate: str, *seconds: float, **more: Any) -> Trial:
    """A trial of the task ``key``; one without ``seconds`` failed in the build."""
    if not seconds:
        more.setdefault("error", {"stage": "build", "message": "no such register"})
    fields: dict[str, Any] = {"implementation": "direct", "workload": f"w-{key}"}
    fields |= {"trace": [["x"], []]} | more
    return Trial(task=key, candidate=candidate, seconds=list(seconds), **fields)


def trace(tile: int, *, cached: bool = False) -> list[Any]:
    """A trace of one of two designs, whose post-processors depend on the tile."""
    instructions: list[Any] = [
        ["GetSBlock", [], ["dense", "main"], ["b0"]],
        ["SamplePerfectTile", ["l1"], [2, 64], ["v2", "v3"]],
        *([["CacheWrite", ["b0"], [0, "global"], ["b4"]]] if cached else []),
    ]
    layout = "".join(f'{{"node":{n},"by":{tile * n}}}' for n in range(40))
    postprocs: list[Any] = [
        ["EnterPostproc", [], [], []],
        ["TransformLayout", ["b0", layout], [0, "write", None, True], []],
        *([["Vectorize", ["l9"], [], []]] if tile > 4 else []),
    ]
    return [[*instructions, *postprocs], [[1, [64 // tile, tile]]]]


def verdict(of: Trial, verified: bool, message: str = "") -> dict[str, Any]:
    return {
        "workload": of.workload,
        "candidate": of.candidate,
        "verified": verified,
        "message": message,
    }


def write(path: Path, *trials: Trial, of: Device | None = None) -> Path:
    """A log of one run: header, tasks, trials."""
    with LogWriter(path) as writer:
        writer.append("header", header(of))
        for key in sorted({t.task for t in trials}):
            writer.append("task", task(key))
        for each in trials:
            writer.trial(each)
    return path
