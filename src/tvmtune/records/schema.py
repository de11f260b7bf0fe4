"""The log's schema: a builder and a parser for every kind of line.

``docs/log-format.md`` documents the fields. Parsers raise KeyError or TypeError for a field that is
missing, and ValueError for one that has another type or is damaged.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, NamedTuple

from tvmtune import fields as kinds
from tvmtune.bounded import Allowance
from tvmtune.errors import TvmtuneError
from tvmtune.machine import board_identity, fingerprint, package_versions
from tvmtune.passes.workload_keys import SPACE_VERSION
from tvmtune.records.designs import Design, PackedTrace
from tvmtune.types import JSON, Implementation, Prepared, Task, TensorSpec, Trial

FORMAT = 2
HEADER, TASK, DESIGN, TRIAL = "header", "task", "design", "trial"
VERDICT, REMEASURE, DRIFT = "verdict", "remeasure", "drift"
"""Values of ``type``, which every line has."""

_TRIAL_FIELDS = [
    f.name for f in fields(Trial) if f.name not in ("device", "extra", "source_module")
]
_NOT_EXTRA = {*_TRIAL_FIELDS, "type", "device", "design", "decisions", "postprocs"}

_TEXT, _NUMBER, _INTEGER, _LIST = kinds.TEXT, kinds.NUMBER, kinds.INTEGER, kinds.LIST
_TRIAL_REQUIRED = dict.fromkeys(("task", "implementation", "workload", "candidate"), _TEXT)
_TRIAL_OPTIONAL = {
    **dict.fromkeys(("tuner", "kind"), _TEXT),
    **dict.fromkeys(("time", "drift"), _NUMBER),
    "remeasured": _INTEGER,
    "verified": kinds.FLAG,
    "error": kinds.OBJECT_OR_NULL,
    "device": kinds.TEXT_OR_NULL,
}
"""Of a trial; its seconds are checked by the reader, which leaves out what cannot be measured."""


class Line(NamedTuple):
    """A line to write."""

    kind: str
    fields: JSON


@dataclass(frozen=True)
class Verdict:
    """The result of checking a candidate's output."""

    workload: str
    candidate: str
    verified: bool | None
    """None if the check reached no verdict."""
    message: str


class Reading(NamedTuple):
    """A timing of the baseline kernel, which reveals drift."""

    run: int
    """Index of the header of the run."""
    time: float
    """Seconds since the epoch."""
    ratio: float
    """Its time relative to its first timing in the run."""


@dataclass(frozen=True)
class Remeasurement:
    """Repeats of a second measurement of a candidate."""

    workload: str
    candidate: str
    seconds: Sequence[float]


def header(prepared: Prepared, peak: float | None = None) -> Line:
    """The header of a run: network, device, versions, host. It governs the lines after it.

    ``peak``: the device's peak rate in GFLOPS, if known.
    """
    network, device = prepared.network, prepared.device
    return Line(
        HEADER,
        {
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
            "versions": package_versions.versions(),
            "host": fingerprint.fingerprint(),
            "threads": device.threads,
            "started": time.time(),
            "space_version": SPACE_VERSION,
            "peak_gflops": peak,
        },
    )


def check_header(record: JSON) -> None:
    """Raise :class:`TvmtuneError` for an incomplete header or one of a newer format; the message
    continues a sentence that begins with the log's path."""
    version: Any = record.get("format")
    parts = (record.get("device"), record.get("network"))
    if type(version) is not int or not all(isinstance(part, dict) for part in parts):
        raise TvmtuneError("is not a tvmtune log: its header is incomplete")
    if version > FORMAT:
        raise TvmtuneError(
            f"was written by a newer tvmtune (log format {version}; this one reads up to {FORMAT}). "
            "Upgrade tvmtune."
        )
    kinds.check(record, {}, {"versions": kinds.OBJECT, "started": _NUMBER})
    device, network = record["device"], record["network"]
    described = dict.fromkeys(("identity", "backend", "model"), _TEXT)
    kinds.check(
        device,
        described | {"target": kinds.OBJECT, "threads": _INTEGER},
        {**dict.fromkeys(("attrs", "params", "board"), kinds.OBJECT), "runtime": _TEXT},
    )
    board_identity.check(device.get("board", {}))
    kinds.check(
        network,
        {},
        {"name": _TEXT, "structure_hash": _TEXT, "weights_hash": _TEXT, "inputs": _LIST},
    )
    for entry in network.get("inputs", ()):
        if not (
            isinstance(entry, list)
            and [type(part) for part in entry] == [str, list, str]
            and all(type(extent) is int for extent in entry[1])
        ):
            raise ValueError("an input is not [name, shape, dtype]")


def task(of: Task) -> Line:
    """A task with its workloads, which make the log self-contained."""
    from tvmtune.spaces.traces import store_module

    return Line(
        TASK,
        {
            "task": of.key,
            "anchor": of.anchor_key,
            "index": of.index,
            "name": of.name,
            "weight": of.weight,
            "flop": of.flop,
            "args": [[list(a.shape), a.dtype] for a in of.args],
            "implementations": [
                {
                    "name": i.name,
                    "workload": i.workload_key,
                    "exact": i.exact,
                    "module": store_module(i.mod),
                    **template_version(i),
                }
                for i in of.implementations
            ],
        },
    )


def check_task(record: JSON) -> None:
    """Raise KeyError or ValueError if what identifies the task and its workloads is not right."""
    kinds.check(
        record,
        {"task": _TEXT, "anchor": _TEXT},
        {"name": _TEXT, "index": _INTEGER, "weight": _INTEGER, "flop": _NUMBER, "args": _LIST},
    )
    kinds.check(record, {}, {"implementations": _LIST})
    for each in record.get("implementations", ()):
        if not isinstance(each, dict):
            raise ValueError("an implementation is not an object")
        kinds.check(each, {"name": _TEXT}, {"workload": _TEXT, "module": _TEXT, "space": _TEXT})


def parse_task(record: JSON) -> Task:
    """The task without its implementations, whose spaces are not in the log."""
    return Task(
        index=record["index"],
        name=record["name"],
        key=record["task"],
        anchor_key=record["anchor"],
        weight=record["weight"],
        flop=record["flop"],
        args=tuple(TensorSpec("", tuple(shape), dtype) for shape, dtype in record["args"]),
        implementations=[],
    )


def workload_module(task_record: JSON | None, implementation: str) -> str | None:
    """The workload of an implementation as a task's line stores it; None if it has none."""
    listed = (task_record or {}).get("implementations", ())
    return next((i.get("module") for i in listed if i["name"] == implementation), None)


def template_version(implementation: Implementation) -> JSON:
    """The field that changes when the author changes the template; empty for other spaces."""
    digest = getattr(implementation.space, "version", None)
    return {} if digest is None else {"space": digest}


def design(of: Design) -> Line:
    return Line(
        DESIGN,
        {"design": of.key, "instructions": of.instructions, "postprocs": of.encoded_example()},
    )


def parse_design(record: JSON, allowance: Allowance | None = None) -> Design:
    kinds.check(record, {"design": _TEXT, "instructions": _LIST, "postprocs": _TEXT})
    made = Design.decode(record["instructions"], record["postprocs"], allowance)
    if made.key != record["design"]:
        raise ValueError("the design does not match its key")
    return made


def trial(of: Trial, packed: PackedTrace | None = None) -> Line:
    """A trial; the header before it names its device.

    Without a ``packed`` trace the line contains the trial's whole trace, as in format 1.
    """
    record = {name: getattr(of, name) for name in _TRIAL_FIELDS if name != "trace"}
    if packed is None:
        schedule: JSON = {"trace": of.trace}
    else:
        schedule = {
            "design": packed.design.key,
            "decisions": packed.decisions,
            "postprocs": packed.encoded_postprocs(),
        }
    return Line(TRIAL, {**of.extra, **record, **schedule})


def parse_trial(record: JSON, trace: Any, device: str = "") -> Trial:
    """``device``: identity of the device that the header describes. Unknown fields go to ``extra``;
    the seconds may be anything."""
    kinds.check(record, _TRIAL_REQUIRED, _TRIAL_OPTIONAL)
    if record.get("error") is not None:
        kinds.check(record["error"], {"stage": _TEXT, "message": _TEXT})
    known = {name: record[name] for name in _TRIAL_FIELDS if name in record}
    extra: JSON = {}
    if not record.keys() <= _NOT_EXTRA:
        extra = {name: value for name, value in record.items() if name not in _NOT_EXTRA}
    known["trace"] = trace
    return Trial(**known, device=record.get("device") or device, extra=extra)


def check_packed_trace(record: JSON) -> None:
    kinds.check(record, {"design": _TEXT, "decisions": _LIST, "postprocs": _TEXT})


def parse_packed_trace(
    record: JSON, design: Design, allowance: Allowance | None = None
) -> PackedTrace:
    """The trace of a trial's line."""
    return PackedTrace.decode(design, record["decisions"], record["postprocs"], allowance)


def verdict(of: Trial, deviation: float | None, message: str) -> Line:
    """``deviation``: max|y - ref| / max|ref|; None if the check reached no verdict."""
    return Line(
        VERDICT,
        {
            "workload": of.workload,
            "candidate": of.candidate,
            "verified": of.verified,
            "deviation": "inf" if deviation == inf else deviation,
            "message": message,
        },
    )


def parse_verdict(record: JSON) -> Verdict:
    required = {"workload": _TEXT, "candidate": _TEXT, "verified": kinds.FLAG}
    kinds.check(record, required, {"message": _TEXT})
    return Verdict(
        record["workload"], record["candidate"], record["verified"], record.get("message", "")
    )


def remeasurement(of: Trial, seconds: Sequence[float]) -> Line:
    return Line(
        REMEASURE,
        {
            "workload": of.workload,
            "candidate": of.candidate,
            "seconds": list(seconds),
            "time": time.time(),
        },
    )


def parse_remeasurement(record: JSON) -> Remeasurement:
    """Its seconds may be anything."""
    kinds.check(record, {"workload": _TEXT, "candidate": _TEXT})
    return Remeasurement(record["workload"], record["candidate"], record["seconds"])


def drift(ratio: float) -> Line:
    """``ratio``: time of the baseline kernel relative to its first timing in the run."""
    return Line(DRIFT, {"ratio": round(ratio, 4), "time": time.time()})


def parse_drift(record: JSON, run: int) -> Reading | None:
    """``run``: index of the header that governs the line. None if it is damaged: no reader needs it."""
    try:
        kinds.check(record, {"ratio": _NUMBER, "time": _NUMBER})
    except (KeyError, ValueError):
        return None
    return Reading(run, record["time"], record["ratio"])


def copied(record: Mapping[str, Any], **changes: Any) -> Line:
    """A line that was read, to be written to another log."""
    known = {name: value for name, value in record.items() if name != "type"}
    return Line(record["type"], known | changes)
