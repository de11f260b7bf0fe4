"""Networks, devices and runtimes side by side, from the results of ``tvmtune bench --json``.

Beside them stand published reference numbers (``published.json``), marked as such wherever they appear.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmtune import bounded, fields
from tvmtune.errors import TvmtuneError
from tvmtune.report import charts, facts, theme
from tvmtune.report.page import counted, ms, percent, render
from tvmtune.types import JSON, TensorSpec, batch_of

PUBLISHED = "published reference"
"""The runtime of published numbers in charts."""

_RUN = {"runtime": fields.TEXT, "version": fields.TEXT, "median_ms": fields.NUMBER}
_RUN_OPTIONAL = {
    "threads": fields.INTEGER,
    "device": fields.TEXT,
    "modelled_ms": fields.NUMBER_OR_NULL,
    "ratio": fields.NUMBER_OR_NULL,
    "error": fields.NUMBER_OR_NULL,
}


@dataclass(frozen=True)
class Row:
    """One runtime's result for a network on a device."""

    network: str
    device: str
    runtime: str
    version: str
    ms: float
    modelled: bool
    file: Path
    time: float | None
    """When it was measured, in seconds since the epoch."""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.network, self.device, self.runtime


@dataclass(frozen=True)
class Measurement:
    """One file of ``tvmtune bench --json``."""

    file: Path
    rows: list[Row]
    system: str
    versions: str
    time: float | None
    load: float | None
    notes: list[str]


@dataclass(frozen=True)
class Reference:
    """A published number."""

    network: str
    device: str
    runtime: str
    ms: float


class Matrix:
    """The newest result for each network, device and runtime."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self.measurements = list(measurements)
        every = [row for m in measurements for row in m.rows]
        newest: dict[tuple[str, str, str], Row] = {}
        for row in every:
            known = newest.get(row.place)
            if known is None or (row.time or 0.0) >= (known.time or 0.0):
                newest[row.place] = row
        self.rows = list(newest.values())
        self.older = len(every) - len(self.rows)
        self.networks = sorted({row.network for row in self.rows})
        self.lines = sorted({(row.device, row.runtime) for row in self.rows}, key=_tvmtune_first)
        self.references = [r for r in references() if r.network in self.networks]

    def at(self, network: str, line: tuple[str, str]) -> Row | None:
        return next((r for r in self.rows if r.place == (network, *line)), None)

    def fastest(self, network: str, device: str) -> float:
        return min(r.ms for r in self.rows if (r.network, r.device) == (network, device))

    def versions(self, line: tuple[str, str]) -> str:
        found = {r.version for r in self.rows if (r.device, r.runtime) == line}
        return ", ".join(sorted(filter(None, found)))

    def charts(self) -> dict[str, charts.Spec]:
        """Bars of each network."""
        runtimes = list(dict.fromkeys(runtime for _, runtime in self.lines))
        colors = {r: theme.SERIES[n % (len(theme.SERIES) - 1)] for n, r in enumerate(runtimes)}
        made = {}
        for n, network in enumerate(self.networks):
            values = [
                {"label": f"{r.device}: {r.runtime}", "runtime": r.runtime, "ms": r.ms}
                for line in self.lines
                if (r := self.at(network, line)) is not None
            ]
            values += [
                {"label": f"{r.device}: {r.runtime}", "runtime": PUBLISHED, "ms": r.ms}
                for r in self.references
                if r.network == network
            ]
            used = {v["runtime"] for v in values}
            palette = {
                r: c for r, c in (colors | {PUBLISHED: theme.SERIES[-1]}).items() if r in used
            }
            made[f"bars-{n}-{_file_name(network)}"] = charts.bars(values, palette)
        return made

    def html(self) -> str:
        """The page; raises :class:`TvmtuneError` if the extra ``report`` is not installed."""
        return render(
            "matrix.html.j2",
            title="Benchmarks",
            matrix=self,
            charts=self.charts(),
            codes={},
            published=published(),
            names=list(self.charts()),
            clock=facts.clock,
            as_published=as_published,
            reload_after=None,
        )

    def markdown(self) -> str:
        """The tables of the page as Markdown."""
        parts = [
            "# Benchmarks",
            "Milliseconds per call (medians); the fastest runtime on each device in bold.",
            _markdown_table(
                ["device", "runtime", "version", *self.networks],
                [
                    [*line, self.versions(line), *(self._cell(n, line) for n in self.networks)]
                    for line in self.lines
                ],
                left=3,
            ),
        ]
        if self.older:
            parts.append(
                f"{counted(self.older, 'older result')} of the same networks, devices and runtimes "
                "left out."
            )
        parts += [
            "## Measurements",
            _markdown_table(
                ["file", "network", "versions", "system", "measured", "load of others", "notes"],
                [
                    [
                        m.file.name,
                        m.rows[0].network,
                        m.versions,
                        m.system,
                        facts.clock(m.time),
                        percent(m.load) if m.load is not None else "",
                        "; ".join(m.notes),
                    ]
                    for m in self.measurements
                ],
                left=7,
            ),
            "## Published references",
            _source(),
            _markdown_table(
                ["device", "runtime", *published()["networks"]],
                [[r["device"], "TVM", *map(as_published, r["ms"])] for r in published()["rows"]],
                left=2,
            ),
            "\n".join(
                f"- {_escaped(r['network'])} on {r['device']}, {r['runtime']}: "
                f"{as_published(r['ms'])} ms"
                for r in published()["single"]
            ),
        ]
        return "\n\n".join(parts) + "\n"

    def _cell(self, network: str, line: tuple[str, str]) -> str:
        row = self.at(network, line)
        if row is None:
            return ""
        text = ms(row.ms) + (" (modeled)" if row.modelled else "")
        return f"**{text}**" if row.ms == self.fastest(network, row.device) else text


def read(path: Path) -> Measurement:
    """The results in a file; raises :class:`TvmtuneError` if it is not one of ``bench --json``."""
    try:
        record = bounded.parse_json(path.read_bytes())
    except OSError as error:
        raise TvmtuneError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise TvmtuneError(f"{path} is not the output of tvmtune bench --json: {error}") from None
    try:
        return _measurement(path, record)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TvmtuneError(
            f"{path} is not the output of tvmtune bench --json: {_what(error)}. Logs go without "
            "--matrix."
        ) from None


@functools.cache
def published() -> JSON:
    """Published reference numbers with their source."""
    path = Path(__file__).with_name("published.json")
    result: JSON = json.loads(path.read_text(encoding="utf-8"))
    return result


def references() -> list[Reference]:
    """All published numbers."""
    data = published()
    listed = [
        Reference(network, row["device"], "TVM", value)
        for row in data["rows"]
        for network, value in zip(data["networks"], row["ms"], strict=True)
        if value is not None
    ]
    single = [Reference(r["network"], r["device"], r["runtime"], r["ms"]) for r in data["single"]]
    return listed + single


def as_published(value: float | None) -> str:
    """With the digits that were published."""
    return "" if value is None else f"{value:,}"


def _measurement(path: Path, record: Any) -> Measurement:
    fields.check(
        record,
        {"runs": fields.LIST, "network": fields.OBJECT, "device": fields.OBJECT},
        {"time": fields.NUMBER, "notes": fields.LIST, "background_load": fields.NUMBER_OR_NULL},
    )
    network = _network(record["network"])
    device, host = record["device"], facts.part(record, "host")
    board = facts.part(record, "board")
    rows = []
    for run in record["runs"]:
        fields.check(run, _RUN, _RUN_OPTIONAL)
        modelled = run.get("modelled_ms")
        value = modelled if modelled is not None else run["median_ms"]
        if not value > 0:
            raise ValueError("a time is not positive")
        rows.append(
            Row(
                network=network,
                device=_device(device, board, host, run),
                runtime=run["runtime"],
                version=run["version"],
                ms=float(value),
                modelled=modelled is not None,
                file=path,
                time=record.get("time"),
            )
        )
    if not rows:
        raise ValueError("it holds no runs")
    return Measurement(
        file=path,
        rows=rows,
        system=", ".join(str(host[k]) for k in ("cpu", "os", "kernel") if host.get(k)),
        versions=", ".join(f"{r.runtime} {r.version}".strip() for r in rows),
        time=record.get("time"),
        load=record.get("background_load"),
        notes=[str(note) for note in record.get("notes", [])],
    )


def _network(network: JSON) -> str:
    """Its name, with dtype and batch unless float32 and 1."""
    source = facts.part(network, "source")
    words = [str(network["name"])]
    if source.get("dtype") not in (None, "", "float32"):
        words.append(str(source["dtype"]))
    batch = source.get("batch")
    if batch is None and isinstance(network.get("inputs"), list):
        inputs = [TensorSpec(n, tuple(s), d) for n, s, d in network["inputs"]]
        batch = batch_of(source, inputs)
    if batch not in (None, 1):
        words.append(f"batch {batch}")
    return " ".join(words)


def _device(device: JSON, board: JSON, host: JSON, run: JSON) -> str:
    model = device.get("model")
    if run.get("device", "cpu") == "cpu":
        model = board.get("cpu") or (model if device.get("runtime") == "cpu" else host.get("cpu"))
    name = str(model or device.get("backend") or "device")
    threads = run.get("threads")
    if not threads or run.get("device", "cpu") != "cpu":
        return name
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def _tvmtune_first(line: tuple[str, str]) -> tuple[str, int, str]:
    order = {"tvmtune": 0, "untuned": 1}
    return line[0], order.get(line[1], 2), line[1]


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    marks = ["---" if n < left else "---:" for n in range(len(head))]
    lines = [map(_escaped, head), marks, *(map(_escaped, row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is; bold numbers stay bold."""
    text = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;")
    for sign in "\\|[]`_":
        text = text.replace(sign, "\\" + sign)
    return text


def _source() -> str:
    source = published()["source"]
    return (
        f"Not measured here: {source['by']}, [{source['title']}]({source['url']}), "
        f"{source['years']}; {source['note']}."
    )


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in text)[:60]


def _what(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)
