"""The start of a run in its log: header and tasks; and whether an existing log can be continued."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.machine import board_identity, package_versions
from tvmtune.records import schema
from tvmtune.records.log import Log, LogWriter, is_empty, read_log
from tvmtune.types import JSON, Device, Prepared, Task, TensorSpec, Trial


def begin(
    writer: LogWriter,
    prepared: Prepared,
    tasks: Sequence[Task],
    history: Log | None,
    peak: float | None,
) -> None:
    """Write the run's header, and a line for each task that is new or has changed.

    ``peak``: the device's peak rate in GFLOPS, if known.
    """
    writer.write(schema.header(prepared, peak))
    known = history.tasks if history else {}
    for task in tasks:
        line = schema.task(task)
        if known.get(task.key) != {"type": line.kind, **line.fields}:
            writer.write(line)


def check_tvm(log: Log, why: str) -> None:
    """Raise :class:`TvmtuneError` if the log was measured with another version of TVM; ``why`` says why
    that matters and what to do."""
    mine = package_versions.tvm_version()
    others = {str(h.get("versions", {}).get("apache-tvm", "unknown")) for h in log.headers} - {mine}
    if others:
        raise TvmtuneError(
            f"{log.path} was measured with apache-tvm {', '.join(sorted(others))}, and this is "
            f"{mine}, {why}"
        )


def usable(log: Log, tasks: Sequence[Task]) -> tuple[list[Trial], list[str]]:
    """The log's trials except those of templates that have changed since, and the names of the tasks
    with such templates."""
    changed: dict[tuple[str, str], str] = {}
    for task in tasks:
        stored = {i["name"]: i for i in log.tasks.get(task.key, {}).get("implementations", ())}
        for implementation in task.implementations:
            before = stored.get(implementation.name, {}).get("space")
            if before is not None and before != schema.template_version(implementation).get(
                "space"
            ):
                changed[task.key, implementation.name] = task.name
    trials = [t for t in log.trials if (t.task, t.implementation) not in changed]
    return trials, sorted(set(changed.values()))


def earlier(path: Path, prepared: Prepared) -> Log | None:
    """The log at ``path``, if there is one.

    Raises :class:`TvmtuneError` if it belongs to another network or device, or cannot be read.
    """
    if is_empty(path):
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
            "Choose another --log, or use --fresh to set it aside."
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
            "another --log, or use --fresh to set it aside."
        )
    logged = boards_of(log, device)
    if how := board_identity.difference(logged, device.board):
        raise TvmtuneError(
            f"{path} was measured on other boards '{device.key}' than this one ({how}). Serve "
            "them under different keys, choose another --log, or use --fresh to set it aside."
        )
    return log


def boards_of(log: Log | None, device: Device) -> JSON:
    """The identity of the boards that measured for a device's trials; empty if unknown."""
    mine = device.identity()
    for line in reversed(log.headers if log else ()):
        if line["device"]["identity"] == mine and line["device"].get("board"):
            return dict(line["device"]["board"])
    return {}


def _difference(logged: JSON, device: Device) -> str:
    """How a device with the same model and threads differs from ``device``."""
    if (logged["model"], logged["threads"]) != (device.model, device.threads):
        return ""
    there = {**logged["target"], **logged.get("attrs", {}), "backend": logged["backend"]}
    here = {**device.target, **device.attrs, "backend": device.backend}
    differing = [k for k in there | here if there.get(k) != here.get(k)]
    words = [f"{k} {there.get(k)} instead of {here.get(k)}" for k in differing]
    return f", with {'; '.join(words)}" if words else ""


def _inputs(listed: list[Any]) -> str:
    return ", ".join(str(TensorSpec(name, tuple(shape), dtype)) for name, shape, dtype in listed)
