"""Vega-Lite specifications of a page's charts: plain dictionaries, with their data."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Any

from tvmtune.report.summary import Row, Section, TaskSummary
from tvmtune.report.theme import SERIES
from tvmtune.types import JSON

Spec = dict[str, Any]

HEAVIEST = 15
"""Tasks of a chart of tasks."""
_OUTCOMES = {
    "ok": "var(--c3)",
    "space": "var(--c5)",
    "build": "var(--c2)",
    "timeout": "var(--c4)",
    "run": "var(--c7)",
    "crash": "var(--bad)",
    "wrong-answer": "var(--c6)",
}
_MS = "ms"


def of_section(section: Section) -> dict[str, Spec]:
    """The charts of a section by name; those that the log has no data for are missing."""
    made = {
        "estimate-by-trial": estimate(section.curve, "trial", "trials"),
        "estimate-by-time": estimate(section.curve, "seconds", "seconds of tuning"),
        "tasks": tasks(section),
        "roofline": roofline(section),
        "implementations": implementations(section),
        "outcomes": outcomes(section.outcomes) if section.failed else None,
        "drift": drift(section.drift),
    }
    return {name: spec for name, spec in made.items() if spec is not None}


def estimate(curve: Sequence[Row], x: str, title: str) -> Spec | None:
    """The estimated latency over trials or over time."""
    points = [p for p in curve if p[x] is not None]
    if len(points) < 2:
        return None
    return {
        **_sized(220),
        "data": {"values": points},
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "color": SERIES[0]},
        "encoding": {
            "x": _quantity(x, title),
            "y": _quantity("estimate_ms", "estimated latency, ms", format="~r", nice=True),
            "tooltip": [
                _tip("trial", "trial"),
                *([_tip("seconds", "seconds", ".1f")] if points[0]["seconds"] is not None else []),
                _tip("estimate_ms", "estimate, ms", ".4f"),
            ],
        },
    }


def tasks(section: Section) -> Spec | None:
    """Time in the network of the heaviest tasks, at their first valid trial and now."""
    rows = [t.row for t in section.tasks if t.row["best_ms"] and t.row["weight"]]
    rows = sorted(rows, key=lambda r: -r["weight"] * r["best_ms"])[:HEAVIEST]
    if not rows:
        return None
    values = [
        {"task": label(r), "what": what, "ms": r["weight"] * r[field]}
        for r in rows
        for what, field in (("first valid trial", "first_ms"), ("best", "best_ms"))
    ]
    return {
        **_sized(24 * len(rows)),
        "data": {"values": values},
        "mark": {"type": "bar", "cornerRadiusEnd": 2},
        "encoding": {
            "y": _names("task", [label(r) for r in rows]),
            "yOffset": {"field": "what", "sort": ["first valid trial", "best"]},
            "x": _quantity("ms", "weight * latency, ms"),
            "color": _colors("what", {"first valid trial": "var(--line)", "best": SERIES[0]}),
            "tooltip": [_tip("task"), _tip("what", "at its"), _tip("ms", _MS, ".4f")],
        },
    }


def roofline(section: Section) -> Spec | None:
    """Rate over operations per byte, below the peak that the log recorded.

    The log holds no memory bandwidth, so there is no slanted part.
    """
    values = [
        {
            "task": label(t.row),
            "intensity": t.row["gflop"] * 1e9 / t.bytes,
            "gflops": t.row["gflops"],
            "share": t.row["share"] or 0.0,
            "implementation": t.row["implementation"],
        }
        for t in section.tasks
        if t.bytes and t.row["gflop"] and t.row["gflops"]
    ]
    if len(values) < 2:
        return None
    points: Spec = {
        "mark": {"type": "circle", "opacity": 0.75},
        "encoding": {
            "x": _log("intensity", "operations per byte of arguments", values),
            "y": _log("gflops", "GFLOPS", values, section.peak or 1.0),
            "size": {
                "field": "share",
                "type": "quantitative",
                "scale": {"range": [30, 700], "domainMin": 0},
                "legend": None,
            },
            "color": _colors("implementation", palette(section)),
            "tooltip": [
                _tip("task"),
                _tip("implementation"),
                _tip("gflops", "GFLOPS", ".1f"),
                _tip("intensity", "operations per byte", ".2f"),
                _tip("share", "share of the estimate", ".1%"),
            ],
        },
    }
    layers = [points]
    if section.peak:
        layers = [*_rule(section.peak, f"peak {section.peak:.0f} GFLOPS (float32)"), points]
    return {**_sized(300), "data": {"values": values}, "layer": layers}


def implementations(section: Section) -> Spec | None:
    """Best latency of each implementation over the task's best, for tasks with several."""
    rows = []
    for task in section.tasks:
        known = [i for i in task.implementations if i["ratio"]]
        if len(known) > 1:
            weight = task.row["share"] or 0.0
            rows.append((weight, label(task.row), known))
    rows = sorted(rows, key=lambda r: -r[0])[:HEAVIEST]
    if not rows:
        return None
    values = [
        {
            "task": name,
            "implementation": i["name"],
            "ratio": i["ratio"],
            "ms": i["best_ms"],
            "trials": i["trials"],
        }
        for _, name, known in rows
        for i in known
    ]
    return {
        **_sized(22 * len(rows)),
        "data": {"values": values},
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.85},
        "encoding": {
            "y": _names("task", [name for _, name, _ in rows], grid=True),
            "x": _log("ratio", "latency / the task's best", values),
            "color": _colors("implementation", palette(section)),
            "shape": {"field": "implementation", "sort": list(palette(section))},
            "tooltip": [
                _tip("task"),
                _tip("implementation"),
                _tip("ratio", "times the best", ".3f"),
                _tip("ms", _MS, ".4f"),
                _tip("trials"),
            ],
        },
    }


def outcomes(rows: Sequence[Row]) -> Spec | None:
    """Outcomes of trials over the course of tuning."""
    if not rows:
        return None
    found = dict.fromkeys(r["outcome"] for r in rows)
    others = [name for name in found if name not in _OUTCOMES]
    colors = {n: c for n, c in _OUTCOMES.items() if n in found} | dict.fromkeys(others, SERIES[7])
    return {
        **_sized(180),
        "data": {"values": list(rows)},
        "mark": {"type": "bar", "binSpacing": 1},
        "encoding": {
            "x": {**_quantity("first", "trials"), "bin": {"binned": True}},
            "x2": {"field": "last"},
            "y": {**_quantity("trials", "share of trials", format="%"), "stack": "normalize"},
            "color": _colors("outcome", colors),
            "order": {"field": "outcome"},
            "tooltip": [_tip("first", "from"), _tip("last", "to"), _tip("outcome"), _tip("trials")],
        },
    }


def drift(rows: Sequence[Row]) -> Spec | None:
    """Time of the baseline kernel over the shortest of its run."""
    if len(rows) < 2:
        return None
    line: Spec = {
        "mark": {
            "type": "line",
            "point": {"size": 18, "color": SERIES[1]},
            "strokeWidth": 1.5,
            "color": SERIES[1],
        },
        "encoding": {
            "x": _quantity("seconds", "seconds of tuning"),
            "y": _quantity("ratio", "baseline / fastest", format=".2f"),
            "detail": {"field": "run"},
            "tooltip": [
                _tip("run"),
                _tip("seconds", "seconds", ".0f"),
                _tip("ratio", "baseline / fastest", ".3f"),
            ],
        },
    }
    limit = _rule(1.1, "slow above 1.1")
    return {**_sized(180), "data": {"values": list(rows)}, "layer": [*limit, line]}


def of_task(task: TaskSummary, colors: dict[str, str]) -> Spec | None:
    """Latencies of a task's trials by implementation, and the best so far."""
    if len([p for p in task.points if "low" in p]) < 2:
        return None
    found = {p["implementation"] for p in task.points if "low" in p}
    colors = {name: color for name, color in colors.items() if name in found}
    x = _quantity("trial", "trials of this task")
    y = _log("median", "latency, ms", task.points)
    return {
        **_sized(220),
        "data": {"values": task.points},
        "layer": [
            {
                "transform": [{"filter": "isValid(datum.low)"}],
                "mark": {"type": "point", "filled": True, "size": 26, "opacity": 0.7},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": _colors("implementation", colors),
                    "tooltip": [
                        _tip("trial"),
                        _tip("implementation"),
                        _tip("median", "median, ms", ".4f"),
                        _tip("low", "fastest, ms", ".4f"),
                        _tip("count", "trials"),
                    ],
                },
            },
            {
                "transform": [{"filter": "isValid(datum.best_ms)"}],
                "mark": {
                    "type": "line",
                    "interpolate": "step-after",
                    "color": "var(--ink)",
                    "strokeWidth": 1.5,
                },
                "encoding": {"x": x, "y": {**y, "field": "best_ms"}},
            },
        ],
    }


def comparison(rows: Sequence[Row]) -> Spec | None:
    """Speed-up of each task with its confidence interval."""
    rows = sorted(rows, key=lambda r: -r["weight_ms"])[: 2 * HEAVIEST]
    if not rows:
        return None
    y = _names("label", [r["label"] for r in rows], grid=True)
    bounds = [r[name] for r in rows for name in ("ratio", "low", "high") if r[name]]
    x = _log("ratio", "times as fast as the first log", [{"ratio": b} for b in (*bounds, 1.0)])
    interval: Spec = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2, "color": SERIES[0]},
        "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}},
    }
    point: Spec = {
        "mark": {"type": "point", "filled": True, "size": 60, "color": SERIES[0], "opacity": 1},
        "encoding": {
            "y": y,
            "x": x,
            "tooltip": [
                _tip("label", "task"),
                _tip("ratio", "times as fast", ".3f"),
                _tip("low", "from", ".3f"),
                _tip("high", "to", ".3f"),
            ],
        },
    }
    one: Spec = {
        "data": {"values": [{"at": 1}]},
        "mark": {"type": "rule", "strokeDash": [4, 4]},
        "encoding": {"x": {"field": "at", "type": "quantitative"}},
    }
    return {
        **_sized(20 * len(rows)),
        "data": {"values": list(rows)},
        "layer": [one, interval, point],
    }


def bars(values: Sequence[Row], colors: dict[str, str]) -> Spec:
    """Milliseconds of runtimes on devices, for one network."""
    longest = max(v["ms"] for v in values)
    y = _names("label", [v["label"] for v in values])
    y["axis"] = {**y["axis"], "labelLimit": 260}
    x = _quantity("ms", "ms per call")
    x["scale"] = {"domain": [0, longest * 1.12]}
    return {
        **_sized(24 * len(values)),
        "data": {"values": list(values)},
        "layer": [
            {
                "mark": {"type": "bar", "cornerRadiusEnd": 2},
                "encoding": {
                    "y": y,
                    "x": x,
                    "color": {**_colors("runtime", colors), "legend": None},
                    "tooltip": [_tip("label", "on"), _tip("runtime"), _tip("ms", _MS, ".4f")],
                },
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 11},
                "encoding": {
                    "y": y,
                    "x": x,
                    "text": {"field": "ms", "type": "quantitative", "format": ",.4~r"},
                },
            },
        ],
    }


def palette(section: Section) -> dict[str, str]:
    """A color for each implementation, the same in all charts of the section."""
    names = [i["name"] for i in section.implementations]
    return {name: SERIES[n % len(SERIES)] for n, name in enumerate(names)}


def label(row: JSON) -> str:
    """A task's index and name."""
    name = str(row["name"] or row["key"])
    return name if row["task"] is None else f"{row['task']} {name}"


def _sized(height: int) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
    }


def _quantity(field: str, title: str, *, format: str = "", nice: bool = False) -> Spec:
    axis: Spec = {"title": title, "tickCount": 6}
    if format:
        axis["format"] = format
    scale: Spec = {"zero": field in ("trial", "trials", "seconds", "ms", "first", "estimate_ms")}
    if nice:
        scale["nice"] = axis["tickCount"]  # the axis then ends with a tick, above the curve
    return {"field": field, "type": "quantitative", "axis": axis, "scale": scale}


def _log(field: str, title: str, rows: Sequence[Row], *more: float) -> Spec:
    """A logarithmic scale over the rows' values and ``more``, with ticks at 1, 2 and 5 times powers of
    ten, or only at those over several decades."""
    values = [v for row in rows if (v := row.get(field)) and 1e-30 < v < 1e30]
    values += [v for v in more if 1e-30 < v < 1e30]
    low, high = min(values, default=1.0), max(values, default=1.0)
    steps: tuple[float, ...] = (1, 2, 5) if high / low < 200 else (1,)
    if high / low < 3:
        steps = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    decades = range(floor(log10(low)) - 1, ceil(log10(high)) + 2)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    first = max((t for t in ticks if t <= low * 1.001), default=low)
    last = min((t for t in ticks if t >= high * 0.999), default=high)
    room = (last / first) ** 0.02
    return {
        "field": field,
        "type": "quantitative",
        "axis": {
            "title": title,
            "format": "~r",
            "values": [float(f"{t:.6g}") for t in ticks if first <= t <= last],
            "labelOverlap": True,
        },
        "scale": {"type": "log", "nice": False, "domain": [first / room, last * room]},
    }


def _names(field: str, order: Sequence[str], *, grid: bool = False) -> Spec:
    return {
        "field": field,
        "type": "nominal",
        "sort": list(order),
        "axis": {"title": None, "labelLimit": 190, "grid": grid, "ticks": False, "domain": False},
    }


def _colors(field: str, colors: dict[str, str] | None = None) -> Spec:
    encoding: Spec = {"field": field, "type": "nominal"}
    if colors:
        encoding["scale"] = {"domain": list(colors), "range": list(colors.values())}
    return encoding


def _tip(field: str, title: str = "", format: str = "") -> Spec:
    tip: Spec = {"field": field, "title": title or field}
    if format:
        tip |= {"type": "quantitative", "format": format}
    return tip


def _rule(at: float, words: str) -> list[Spec]:
    """A horizontal line with a label."""
    data = {"values": [{"at": at, "words": words}]}
    y = {"field": "at", "type": "quantitative"}
    return [
        {"data": data, "mark": {"type": "rule", "strokeDash": [5, 4]}, "encoding": {"y": y}},
        {
            "data": data,
            "mark": {
                "type": "text",
                "align": "left",
                "baseline": "bottom",
                "dy": -4,
                "fontSize": 11,
            },
            "encoding": {"x": {"value": 4}, "y": y, "text": {"field": "words"}},
        },
    ]
