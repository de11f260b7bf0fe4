"""Trials in the T4 format: results of auto-tuning as Kernel Tuner's ``store_output_file`` writes them.

The schema is ``schema/T4/1.0.0/results-schema.json`` of Kernel Tuner. Of its optional fields only those
that a log knows are written. A log tunes many kernels at once: ``task``, ``implementation`` and
``device`` in the configuration tell them apart, the other entries are the knobs of the schedule.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tvmtune import atomic_write
from tvmtune.errors import UsageError
from tvmtune.records.best import Selection
from tvmtune.spaces.knobs import knobs
from tvmtune.types import JSON, Trial

VERSION = "1.0.0"
"""Of the schema."""

_INVALIDITY = {
    "space": "constraints",
    "build": "compile",
    "timeout": "timeout",
    "run": "runtime",
    "crash": "runtime",
    "wrong-answer": "correctness",
}
"""T4's words for the stages where trials fail."""


def results(trials: Iterable[Trial], tasks: Mapping[str, JSON]) -> JSON:
    """The document; ``tasks`` are task lines by key. The objective is ``time``, in milliseconds."""
    return {
        "schema_version": VERSION,
        "metadata": {"timeunit": "milliseconds"},
        "results": [_result(trial, tasks.get(trial.task, {})) for trial in trials],
    }


def write(selections: Iterable[Selection], path: Path, *, force: bool = False) -> None:
    """Write the selected records, atomically.

    Raises :class:`UsageError` if ``path`` exists and holds no such results, unless ``force`` is set,
    and :class:`TvmtuneError` if it cannot be written.
    """
    if path.exists() and not (force or _is_ours(path)):
        raise UsageError(
            f"{path} exists and holds no T4 results: choose another -o, or replace it with --force"
        )
    listed: list[JSON] = []
    for selection in selections:
        kept = (trial for trials in selection.trials.values() for trial in trials)
        listed += results(kept, selection.tasks)["results"]
    atomic_write.write_text(
        path, json.dumps(results((), {}) | {"results": listed}, indent=1) + "\n"
    )


def _is_ours(path: Path) -> bool:
    """Whether the file is empty, or begins as :func:`write` begins one."""
    with path.open("rb") as file:
        start = file.read(64)
    return not start or start.startswith(b'{\n "schema_version": ')


def _result(trial: Trial, task: JSON) -> JSON:
    measurements: list[JSON] = []
    if trial.ok:
        measurements.append(_measurement("time", trial.latency * 1e3, "ms"))
        if flop := task.get("flop"):
            measurements.append(_measurement("GFLOP/s", flop / trial.latency / 1e9, "GFLOP/s"))
    stage = trial.error["stage"] if trial.error else None
    return {
        "timestamp": datetime.fromtimestamp(trial.time, timezone.utc).isoformat(),
        "configuration": {
            "task": task.get("name") or trial.task,
            "implementation": trial.implementation,
            "device": trial.device,
            **_knobs(trial.trace),
        },
        "objectives": ["time"],
        "times": {"runtimes": [1e3 * seconds for seconds in trial.seconds]},
        "invalidity": "correct" if trial.ok else _INVALIDITY.get(str(stage), "runtime"),
        "correctness": 0 if trial.verified is False else 1,
        "measurements": measurements,
    }


def _measurement(name: str, value: float, unit: str) -> JSON:
    return {"name": name, "value": value, "unit": unit}


def _knobs(trace: Any) -> JSON:
    try:
        return {knob.name: knob.decision for knob in knobs(trace)}
    except (IndexError, TypeError, ValueError):  # a log may hold anything
        return {}
