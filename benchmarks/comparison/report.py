"""The tables of measured rows, in Markdown."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from math import exp, inf, log
from typing import Any

from comparison.roofline import shares
from comparison.rows import Row

NONE = "-"
WRONG = 1e-2
"""Error of a peer from which its time does not count: it computes something else."""


def newest(rows: Iterable[Row]) -> tuple[list[Row], int]:
    """The rows of the state that was measured last, and the number of other rows."""
    rows = list(rows)
    if not rows:
        return [], 0
    state = max(rows, key=lambda row: row["measured"])["state_key"]
    chosen = [row for row in rows if row["state_key"] == state]
    return chosen, len(rows) - len(chosen)


def report(rows: Sequence[Row], top: int) -> str:
    """All tables for rows of one state; ``top`` layers per network and kind."""
    done = [row for row in rows if "failure" not in row]
    failed = [row for row in rows if "failure" in row]
    parts = [_conditions(rows)]
    if done:
        parts += [_times(done), _errors(done), _rooflines(done), _layers(done, top), _made(done)]
    missing = [
        f"- {row['network']}, {name}: {reason}"
        for row in done
        for name, reason in row["missing"].items()
    ]
    missing += [f"- {row['network']}: {row['failure']}" for row in failed]
    if missing:
        parts.append("Not measured:\n\n" + "\n".join(dict.fromkeys(missing)))
    return "\n\n".join(parts) + "\n"


def _conditions(rows: Sequence[Row]) -> str:
    """Machine, versions and load in a few sentences."""
    state = rows[0]["state"]
    machine, measuring = state["machine"], state["measuring"]
    versions = ", ".join(f"{name} {v}" for name, v in state["versions"].items() if v)
    days = sorted({time.strftime("%Y-%m-%d", time.gmtime(row["measured"])) for row in rows})
    isa = next((", ".join(row["isa"]) for row in rows if "failure" not in row), "")
    busy = [row["background_load"] or 0.0 for row in rows if "failure" not in row]
    text = (
        f"{machine['cpu']}, {machine['cpus']['usable']} cores ({isa}), "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['os']}, Python {machine['python']}, "
        f"{versions}, sources {state['sources']}; {' to '.join(sorted({days[0], days[-1]}))}. "
        f"Medians of {measuring['repeat']} turns, layout {measuring['layout']}"
    )
    if "tuned" in measuring["kinds"]:
        text += f", tuned for {measuring['tune']:.0f} s"
    if busy:
        text += f". Other processes used {min(busy):.0%} to {max(busy):.0%} of the CPUs"
    return text + "."


def _times(rows: Sequence[Row]) -> str:
    kinds, peers = _names(rows)
    header = ["network", "threads", *(f"{name} ms" for name in (*kinds, *peers)), "best peer"]
    lines = []
    ratios: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        medians = {run["runtime"]: run["median_ms"] for run in row["runs"]}
        wrong = {run["runtime"] for run in row["runs"] if _is_wrong(run, row)}
        right = [name for name in peers if name in medians and name not in wrong]
        best = min(right, key=medians.__getitem__, default=None)
        cells = [row["network"], str(row["threads"])]
        for name in (*kinds, *peers):
            cells.append(_ms(medians.get(name)) + (" (wrong)" if name in wrong else ""))
        cells.append(best or NONE)
        for kind in kinds:
            if best is None or kind not in medians:
                cells.append(NONE)
                continue
            ratio = medians[best] / medians[kind]
            ratios.setdefault((row["threads"], kind), []).append(ratio)
            cells.append(f"{ratio:.2f}")
        cells.append(f"{row['background_load'] or 0.0:.0%}")
        lines.append(cells)
    for threads in sorted({threads for threads, _ in ratios}):
        means = [_geometric(ratios[threads, k]) if (threads, k) in ratios else NONE for k in kinds]
        blank = [""] * (len(kinds) + len(peers) + 1)
        lines.append(["geometric mean", str(threads), *blank, *means, ""])
    return _table([*header, *(f"best peer / {kind}" for kind in kinds), "others' CPU use"], lines)


def _errors(rows: Sequence[Row]) -> str:
    kinds, peers = _names(rows)
    lines = []
    for row in rows:
        errors = {run["runtime"]: run["errors"] for run in row["runs"]}
        cells = [
            " / ".join("not finite" if e is None else f"{e:.0e}" for e in errors[name].values())
            if name in errors
            else NONE
            for name in (*kinds, *peers)
        ]
        lines.append([row["network"], str(row["threads"]), *cells])
    return (
        "max|y - ref| / max|ref| with inputs times 1 / 0.001 / 1000 (integers: as they are):\n\n"
        + _table(["network", "threads", *kinds, *peers], lines)
    )


def _rooflines(rows: Sequence[Row]) -> str:
    lines = []
    for threads in sorted({row["threads"] for row in rows}):
        peaks = [row["peak"] for row in rows if row["threads"] == threads]
        cells = []
        for name in ("gflops", "memory_gb_s"):
            values = [peak[name] for peak in peaks]
            cells += [f"{statistics.median(values):.1f}", f"{min(values):.1f} to {max(values):.1f}"]
        lines.append([str(threads), *cells])
    return _table(["threads", "GFLOPS (median)", "range", "GB/s from memory", "range"], lines)


def _layers(rows: Sequence[Row], top: int) -> str:
    lines = []
    for row in rows:
        for kind, found in row["layers"].items():
            whole = sum(layer["ms"] for layer in found) or 1.0
            kernels = [layer for layer in found if layer["gflop"] is not None]
            rated = [(layer, *shares(layer, row["peak"])) for layer in kernels]
            rated.sort(key=lambda each: -each[-1])
            for layer, compute, memory, lost in rated[:top]:
                lines.append(
                    [
                        row["network"],
                        str(row["threads"]),
                        kind,
                        layer["name"],
                        str(layer["calls"]),
                        f"{layer['ms']:.3f}",
                        f"{layer['ms'] / whole:.0%}",
                        f"{compute:.0%}",
                        f"{memory:.0%}",
                        f"{lost:.3f}",
                    ]
                )
    header = ["network", "threads", "library", "layer", "calls", "ms", "share of run",
              "share of peak", "share of bandwidth", "ms beyond the roofline"]  # fmt: skip
    return _table(header, lines)


def _made(rows: Sequence[Row]) -> str:
    lines: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for kind, made in row["libraries"].items():
            lines[row["network"], kind] = [
                row["network"],
                kind,
                str(row["tasks"]),
                str(made["trials"]),
                f"{made['tune_s'] / 60:.1f}",
                f"{made['compile_s']:.1f}",
                f"{made['compile_mb']:.0f}",
                f"{made['library_mb']:.0f}",
            ]
    header = ["network", "library", "tasks", "trials", "tuning minutes", "compile s",
              "compile peak MB", "library MB"]  # fmt: skip
    return _table(header, list(lines.values()))


def _names(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Kinds and peers that occur, in the order in which they were given."""
    measuring = rows[0]["state"]["measuring"]
    seen = {run["runtime"] for row in rows for run in row["runs"]}
    return measuring["kinds"], [name for name in measuring["peers"] if name in seen]


def _is_wrong(run: dict[str, Any], row: Row) -> bool:
    """Whether it is off by more than :data:`WRONG`, and than what is allowed for the network's
    libraries: that is more for networks that round between their layers."""
    allowed = [each["check"]["tolerance"] for each in row["runs"] if each.get("check")]
    error = run["errors"]["1"]
    return error is None or error > max([WRONG, *allowed])


def _geometric(ratios: Sequence[float]) -> str:
    return f"{exp(statistics.fmean(map(log, ratios))):.2f} ({len(ratios)})"


def _ms(value: float | None) -> str:
    if value is None or value == inf:
        return NONE
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
