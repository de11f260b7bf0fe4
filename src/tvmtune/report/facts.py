"""What was tuned, where, and with which versions, as the headers of a log say it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tvmtune.records import table
from tvmtune.report.summary import Row, Run, Section
from tvmtune.types import JSON

Fact = tuple[str, str]


def of_section(section: Section) -> list[tuple[str, list[Fact]]]:
    """Titled groups of facts; what the log does not hold is missing."""
    header = section.headers[-1]
    groups = [
        ("Network", _network(section.network)),
        ("Device", _device(section)),
        ("Measured by", _host(part(header, "host"))),
        ("Versions", _versions(section.headers)),
    ]
    return [(title, facts) for title, facts in groups if facts]


def runs(section: Section) -> list[Row]:
    return [
        {
            "number": run.number,
            "started": clock(run.started),
            "trials": run.trials,
            "seconds": run.seconds if run.started is not None and run.trials else None,
            "peak": table.peak_of(run.header),
            "version": part(run.header, "versions").get("tvmtune"),
            "distilled": run.header.get("distilled") is True,
        }
        for run in _ordered(section.runs)
    ]


def part(record: JSON, name: str) -> JSON:
    """An object inside another; empty if there is none."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def clock(seconds: float | None) -> str:
    """Date and time in UTC; empty if unknown."""
    if not seconds:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):  # of a log that was edited
        return ""


def _ordered(found: Sequence[Run]) -> list[Run]:
    return sorted(found, key=lambda run: run.number)


def _network(network: JSON) -> list[Fact]:
    source = part(network, "source")
    origin = [
        f"{key} {_words(value)}" for key, value in source.items() if value not in ("", {}, [])
    ]
    return _present(
        ("name", network.get("name")),
        ("from", ", ".join(origin)),
        ("inputs", _tensors(network.get("inputs"))),
        ("outputs", _tensors(network.get("outputs"))),
        ("layout", network.get("layout")),
        ("structure", network.get("structure_hash")),
        ("weights", network.get("weights_hash")),
    )


def _device(section: Section) -> list[Fact]:
    device = section.device
    target = device["target"]
    board = part(device, "board")
    return _present(
        ("model", device["model"]),
        ("backend", device["backend"]),
        ("target", _words(target)),
        ("threads", device["threads"]),
        ("board", ", ".join(str(v) for k, v in board.items() if k in ("machine", "cpu") and v)),
        ("boards' key", device.get("remote")),
        ("parameters", _words(device.get("params"))),
        ("attributes", _words(device.get("attrs"))),
        ("float32 peak", f"{section.peak:.1f} GFLOPS" if section.peak else None),
        ("times", "modeled" if section.kind == "modelled" else None),
        ("identity", device["identity"]),
    )


def _host(host: JSON) -> list[Fact]:
    memory = host.get("memory_bytes")
    cpus = part(host, "cpus").get("usable")
    return _present(
        ("CPU", host.get("cpu")),
        ("usable CPUs", cpus),
        ("memory", f"{memory / 2**30:.1f} GiB" if isinstance(memory, int) else None),
        ("system", host.get("os")),
        ("kernel", host.get("kernel")),
        ("machine", host.get("machine")),
        ("Python", host.get("python")),
    )


def _versions(headers: Sequence[JSON]) -> list[Fact]:
    """Each package with all versions that the runs had."""
    found: dict[str, dict[str, None]] = {}
    for header in headers:
        for name, version in part(header, "versions").items():
            found.setdefault(str(name), {})[str(version)] = None
    return [(name, ", ".join(versions)) for name, versions in found.items()]


def _present(*facts: tuple[str, Any]) -> list[Fact]:
    return [(name, str(value)) for name, value in facts if value not in (None, "", {}, [])]


def _tensors(listed: Any) -> str:
    words = []
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, list) and len(entry) == 3 and isinstance(entry[1], list):
            shape = "x".join(map(str, entry[1])) or "scalar"
            words.append(f"{entry[0]}: {shape} {entry[2]}")
    return ", ".join(words)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={_words(v)}" for k, v in value.items() if v not in ("", {}, []))
    if isinstance(value, list):
        return "[" + ", ".join(map(_words, value)) + "]"
    return "" if value is None else str(value)
