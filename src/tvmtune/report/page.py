"""A report as one HTML file that needs nothing else: no network, no other file.

Every text from a log is escaped, by Jinja2 in the page and by vega-tooltip in charts; besides, the
page's policy lets only its own scripts run.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import time
from collections.abc import Sequence
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any

from tvmtune.records.log import Log
from tvmtune.report import charts, code, facts, needs, theme
from tvmtune.report.compare import Comparison, compare
from tvmtune.report.summary import TaskSummary, proposers, sections
from tvmtune.version import __version__

TEMPLATES = Path(__file__).with_name("templates")
CODE_BUDGET = 2_000_000
"""Characters of all tasks' code in a page, compressed. The heaviest tasks come first."""
TASKS = 200
"""Tasks of a section that get a chart of their trials; the heaviest come first."""


class Report:
    """What a page shows of some logs."""

    def __init__(self, logs: Sequence[Log]) -> None:
        self.logs = logs
        self.sections = [section for log in logs for section in sections(log)]
        self.comparisons = self._compared()

    def _compared(self) -> list[Comparison]:
        """Each log with the first: its sections with those of the first that have their place."""
        by_log = [[s for s in self.sections if s.log is log] for log in self.logs]
        return [
            compare(mine, theirs)
            for others in by_log[1:]
            for mine, theirs in zip(by_log[0], others, strict=False)
        ]

    @property
    def title(self) -> str:
        return ", ".join(dict.fromkeys(s.name for s in self.sections))

    def charts(self) -> dict[str, charts.Spec]:
        """All charts of the page by the name of their place, those of tasks excepted."""
        made = {
            f"s{n}-{name}": spec
            for n, section in enumerate(self.sections)
            for name, spec in charts.of_section(section).items()
        }
        for n, comparison in enumerate(self.comparisons):
            spec = charts.comparison(comparison.rows)
            if spec is not None:
                made[f"c{n}-tasks"] = spec
        return made

    def html(self, *, with_code: bool = True, reload_after: float | None = None) -> str:
        """The page. ``reload_after``: seconds until it loads itself again, for a growing log.

        Raises :class:`TvmtuneError` if the extra ``report`` is not installed.
        """
        made = self.charts()
        codes: dict[str, str] = {}
        problems: dict[str, str] = {}
        left_out: list[int] = []
        spent = 0
        for n, section in enumerate(self.sections):
            heaviest = sorted(section.tasks, key=lambda t: -(t.row["share"] or 0.0))
            for task in heaviest[:TASKS]:
                spec = charts.of_task(task, charts.palette(section))
                if spec is not None:
                    made[_place(n, task)] = spec
            left_out.append(0)
            for task, of in zip(
                heaviest, code.of_tasks(section, heaviest) if with_code else (), strict=False
            ):
                if of.problem:
                    problems[_place(n, task)] = of.problem
                packed = _packed(of)
                if packed and spent + len(packed) > CODE_BUDGET:
                    left_out[n] += 1
                elif packed:
                    codes[_place(n, task)] = packed
                    spent += len(packed)
        return render(
            "report.html.j2",
            title=f"Tuning report: {self.title}",
            report=self,
            charts=made,
            codes=codes,
            problems=problems,
            left_out=left_out,
            place=_place,
            facts=facts,
            proposers=proposers,
            label=charts.label,
            reload_after=reload_after,
        )


def _place(section: int, task: TaskSummary) -> str:
    return f"s{section}-{task.anchor}"


def _packed(of: code.Code) -> str:
    """The texts as JSON, compressed, in base64; empty if there are none."""
    texts = {
        name: text
        for name, text in (
            ("Trace", of.trace),
            ("Scheduled TensorIR", of.tir),
            (f"Generated code ({of.language})", of.generated),
        )
        if text
    }
    if not texts:
        return ""
    return base64.b64encode(gzip.compress(json.dumps(texts).encode(), mtime=0)).decode()


def render(name: str, **values: Any) -> str:
    """A template with the page's style and scripts; raises :class:`TvmtuneError` without the extra."""
    jinja2 = needs.jinja2()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ms": ms,
        "number": number,
        "percent": percent,
        "duration": duration,
        "counted": counted,
    }
    library, own = theme.script(), (TEMPLATES / "page.js").read_text(encoding="utf-8")
    made: str = environment.get_template(name).render(
        **values,
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        style=theme.css() + (TEMPLATES / "page.css").read_text(encoding="utf-8"),
        library=library,
        script=own,
        hashes=" ".join(_hash(each) for each in (library, own)),
        data={"config": theme.config(), "specs": _finite(values["charts"])},
    )
    return made


def _finite(value: Any) -> Any:
    """Without infinities, which are no JSON: numbers of a log that was edited may overflow."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def ms(value: float | None) -> str:
    """Milliseconds with three decimals, or three significant digits; a dash if unknown."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.1f}"
    digits = 3 if value >= 0.1 else min(9, 2 - floor(log10(value)))
    return f"{value:.{digits}f}"


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def duration(seconds: float | None) -> str:
    """``1:02:03`` or ``2:03``; a dash if unknown."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(count: int, noun: str) -> str:
    """``1 task`` or ``2 tasks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
