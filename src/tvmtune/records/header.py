"""What stands before a run's trials: its network, device and tasks; and whether a log is this run's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tvmtune import system
from tvmtune.errors import TvmtuneError
from tvmtune.records.identity import SPACE_VERSION
from tvmtune.records.log import FORMAT, Log, LogWriter, read_log
from tvmtune.types import JSON, Device, Implementation, Prepared, Task, TensorSpec, Trial


def header(prepared: Prepared) -> JSON:
    """What governs the lines after it: network, device, versions, host."""
    network, device = prepared.network, prepared.device
    return {
        "format": FORMAT,
        "network": {
            "name": network.name,
            "structure_hash": network.structure_hash,
            "weights_hash": network.weights_hash,
            "source": network.source,
            "layout": prepared.layout,
            "inputs": [[i.name, list(i.shape), i.dtype] for i in network.inputs],
            "outputs": [[o.name, list(o.shape), o.dtype] for o in network.outputs],
        },
        "device": device.to_json(),
        "versions": system.versions(),
        "host": system.fingerprint(),
        "threads": device.threads,
        "started": time.time(),
    }


def task_line(task: Task) -> JSON:
    """A task with its workloads, so that a log needs nothing else."""
    from tvmtune.graph.traces import store_module

    return {
        "task": task.key,
        "anchor": task.anchor_key,
        "index": task.index,
        "name": task.name,
        "weight": task.weight,
        "flop": task.flop,
        "args": [[list(a.shape), a.dtype] for a in task.args],
        "implementations": [
            {
                "name": i.name,
                "workload": i.workload_key,
                "exact": i.exact,
                "module": store_module(i.mod),
                **_space(i),
            }
            for i in task.implementations
        ],
    }


def begin(
    writer: LogWriter,
    prepared: Prepared,
    tasks: Sequence[Task],
    history: Log | None,
    peak: float | None,
) -> None:
    """One header per run, and a line for each task that the log does not describe so yet.

    ``peak``: the device's best rate in GFLOPS, if it is known.
    """
    more = {"space_version": SPACE_VERSION, "peak_gflops": peak}
    writer.append("header", header(prepared) | more)
    known = history.tasks if history else {}
    for task in tasks:
        line = task_line(task)
        if known.get(task.key) != {"type": "task", **line}:
            writer.append("task", line)


def check_tvm(log: Log, why: str) -> None:
    """Raise :class:`TvmtuneError` if a log was measured with another TVM than this one; ``why`` that
    matters, and what to do."""
    mine = version("apache-tvm")
    others = {str(h.get("versions", {}).get("apache-tvm", "unknown")) for h in log.headers} - {mine}
    if others:
        raise TvmtuneError(
            f"{log.path} was measured with apache-tvm {', '.join(sorted(others))}, and this is "
            f"{mine}, {why}"
        )


def usable(log: Log, tasks: Sequence[Task]) -> tuple[list[Trial], list[str]]:
    """The log's trials, without those of a template that has been changed since; and the names of the
    tasks whose template that is."""
    changed: dict[tuple[str, str], str] = {}
    for task in tasks:
        stored = {i["name"]: i for i in log.tasks.get(task.key, {}).get("implementations", ())}
        for implementation in task.implementations:
            before = stored.get(implementation.name, {}).get("space")
            if before is not None and before != _space(implementation).get("space"):
                changed[task.key, implementation.name] = task.name
    trials = [t for t in log.trials if (t.task, t.implementation) not in changed]
    return trials, sorted(set(changed.values()))


def _space(implementation: Implementation) -> JSON:
    """What tells a template from what it was before its author changed it."""
    digest = getattr(implementation.space, "version", None)
    return {} if digest is None else {"space": digest}


def earlier(path: Path, prepared: Prepared) -> Log | None:
    """The log at ``path`` if there is one.

    Raises :class:`TvmtuneError` if it is of another network or device, or cannot be read.
    """
    if not path.exists() or path.stat().st_size == 0:
        return None
    log = read_log(path)
    network, device = prepared.network, prepared.device
    if network.structure_hash not in {h["network"].get("structure_hash") for h in log.headers}:
        names = {h["network"].get("name", "?") for h in log.headers}
        mine = ", ".join(map(str, network.inputs))
        theirs = sorted({_inputs(h["network"].get("inputs", [])) for h in log.headers})
        raise TvmtuneError(
            f"{path} is the log of another network ({', '.join(sorted(names))} with "
            f"{'; '.join(theirs)}), not of this {network.name} with {mine}. "
            "Choose another --log, or --fresh to put it aside."
        )
    devices = log.devices()
    if device.identity() not in devices:
        described = "; ".join(
            f"{d['model'] or d['backend']}, {d['threads']} threads{_difference(d, device)}"
            for d in devices.values()
        )
        raise TvmtuneError(
            f"{path} was measured on another device ({described}), not on this one "
            f"({device.model or device.backend}, {device.threads} threads). Choose "
            "another --log, or --fresh to put it aside."
        )
    return log


def _difference(told: JSON, device: Device) -> str:
    """In what a device that looks like this one is another."""
    if (told["model"], told["threads"]) != (device.model, device.threads):
        return ""
    there = {**told["target"], **told.get("attrs", {}), "backend": told["backend"]}
    here = {**device.target, **device.attrs, "backend": device.backend}
    differing = [k for k in there | here if there.get(k) != here.get(k)]
    words = [f"{k} {there.get(k)} instead of {here.get(k)}" for k in differing]
    return f", with {'; '.join(words)}" if words else ""


def _inputs(listed: list[Any]) -> str:
    return ", ".join(str(TensorSpec(name, tuple(shape), dtype)) for name, shape, dtype in listed)
