"""Reports in a real browser: they run without errors and show the log's numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import large_log
import pytest

from report import sample
from report.test_matrix import bench
from tvmtune.records import shipped, table
from tvmtune.records.log import read_log
from tvmtune.report import matrix
from tvmtune.report.page import Report
from tvmtune.report.summary import sections

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CELLS = "rows => rows.map(row => [...row.cells].map(c => c.dataset.value ?? c.textContent.trim()))"


@dataclass
class Opened:
    """A page, and what it did."""

    page: Page
    problems: list[str] = field(default_factory=list)
    """Messages on the console, and errors."""
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def rows(self, selector: str) -> Any:
        return self.page.eval_on_selector_all(selector, CELLS)


@contextlib.contextmanager
def opened(browser: Browser, path: Path, **options: Any) -> Iterator[Opened]:
    context = browser.new_context(**options)
    result = Opened(context.new_page())
    result.page.on("console", lambda message: result.problems.append(message.text))
    result.page.on("pageerror", lambda error: result.problems.append(str(error)))
    result.page.on("request", lambda request: result.requests.append(request.url))
    result.page.goto(path.as_uri())
    result.page.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)
    yield result
    context.close()


def made(path: Path, report: Report, **options: Any) -> Path:
    path.write_text(report.html(**{"with_code": False} | options), encoding="utf-8")
    return path


@pytest.mark.slow
def test_the_numbers_are_the_logs(browser, log, tmp_path):
    section = sections(log)[0]
    with opened(browser, made(tmp_path / "a.html", Report([log]))) as tab:
        shown = tab.page.eval_on_selector_all(
            "[data-name]",
            "all => Object.fromEntries(all.map(e => [e.dataset.name, e.dataset.value]))",
        )
        assert float(shown["s0-estimate"]) == section.estimate_ms
        assert int(shown["s0-trials"]) == len(log.trials) == 32
        assert tab.text("[data-name=s0-estimate]") == f"{section.estimate_ms:.3f} ms"
        assert tab.text("[data-name=s0-seconds]") == "0:33"
        tasks = table.tasks(log)
        rows = tab.rows("table.tasks tbody tr")
        assert len(rows) == 3
        for n, row in enumerate(rows):
            index, name, weight, trials, failed, first, best, _, share, gflops, peak, kind, out = (
                row
            )
            assert (int(index), name) == (tasks["task"][n], tasks["name"][n])
            assert [int(v) for v in (weight, trials, failed)] == [
                tasks[c][n] for c in ("weight", "trials", "failed")
            ]
            assert [float(v) for v in (first, best, share, gflops, peak)] == [
                tasks[c][n] for c in ("first_ms", "best_ms", "share", "gflops", "of_peak")
            ]
            assert kind == tasks["implementation"][n]
            assert out == ("right" if tasks["verified"][n] else "not checked")
        failures = tab.rows("#s0-failures tbody tr")
        assert [row[:2] for row in failures] == [["build", "3"], ["wrong-answer", "1"]]
        assert failures[0][2] == section.failures[0]["message"]
        drawn = tab.page.evaluate(
            "JSON.parse(document.getElementById('charts').textContent)"
            ".specs['s0-estimate-by-trial'].data.values.map(p => p.estimate_ms)"
        )
        assert drawn == [p["estimate_ms"] for p in section.curve]
        assert tab.page.locator("[data-chart=s0-estimate-by-trial] svg path").count() > 0
        assert tab.problems == []
        assert tab.requests == [tab.page.url], "the page needs nothing else"


@pytest.mark.slow
def test_every_chart_is_drawn(browser, log, tmp_path):
    report = Report([log])
    with opened(browser, made(tmp_path / "a.html", report)) as tab:
        assert set(report.charts()) == {
            f"s0-{name}"
            for name in (
                "estimate-by-trial",
                "estimate-by-time",
                "tasks",
                "roofline",
                "implementations",
                "outcomes",
                "drift",
            )
        }
        for name in report.charts():
            assert tab.page.locator(f"[data-chart={name}] svg").count() == 1, name
        tab.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        tab.page.wait_for_selector("details.task [data-chart] svg")
        assert tab.problems == []


@pytest.mark.slow
def test_nothing_in_a_log_runs(browser, log, tmp_path):
    with opened(browser, made(tmp_path / "a.html", Report([log, log]))) as tab:
        tab.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        tab.page.hover("[data-chart=s0-tasks] svg .mark-rect path >> nth=0")
        tab.page.wait_for_selector("#vg-tooltip-element.visible")
        assert sample.HOSTILE in tab.text("#s0-tasks table")
        assert tab.page.locator("img").count() == 0
        assert tab.page.evaluate("window.ran") is None
        # Even if an element slipped through, the page's policy would not let it run.
        tab.page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=ran=3>')"
        )
        tab.page.wait_for_timeout(200)
        assert tab.page.evaluate("window.ran") is None


@pytest.mark.slow
def test_the_code_is_unpacked_when_it_is_opened(browser, tmp_path):
    log = read_log(min(shipped.FOLDER.glob("x86*.json.xz")))
    keep = sorted({t.task for t in log.trials}, key=lambda k: log.tasks[k]["flop"])[:1]
    log.trials = [t for t in log.trials if t.task in keep]
    with opened(browser, made(tmp_path / "a.html", Report([log]), with_code=True)) as tab:
        assert tab.page.locator("pre").count() == 0
        tab.page.click("details.task summary")
        tab.page.wait_for_selector("[data-code] pre", state="attached")
        tab.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        titles = tab.page.eval_on_selector_all(
            "[data-code] summary", "all => all.map(e => e.innerText)"
        )
        assert titles == ["Trace", "Scheduled TensorIR", "Generated code (assembly)"]
        assert "@T.prim_func" in tab.text("[data-code]")
        assert tab.problems == []


@pytest.mark.slow
def test_tables_are_sorted_by_a_click(browser, log, tmp_path):
    with opened(browser, made(tmp_path / "a.html", Report([log]))) as tab:
        column = tab.page.locator("table.tasks th").filter(has_text="best, ms")
        column.click()
        values = [float(row[6]) for row in tab.rows("table.tasks tbody tr")]
        assert values == sorted(values, reverse=True)
        column.press("Enter")
        assert [float(row[6]) for row in tab.rows("table.tasks tbody tr")] == values[::-1]


@pytest.mark.slow
def test_a_comparison(browser, tmp_path):
    logs = [
        read_log(sample.write(tmp_path / "a.json")),
        read_log(sample.write(tmp_path / "b.json", factor=0.5, seed=1)),
    ]
    report = Report(logs)
    with opened(browser, made(tmp_path / "a.html", report)) as tab:
        total = report.comparisons[0].total
        assert float(tab.page.get_attribute("[data-name=c0-ratio]", "data-value")) == total["ratio"]
        rows = tab.rows("#comparison tbody tr")
        assert [float(row[4]) for row in rows] == [r["ratio"] for r in report.comparisons[0].rows]
        assert tab.page.locator("[data-chart=c0-tasks] svg").count() == 1
        assert tab.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_a_phone_in_the_dark_and_paper(browser, log, tmp_path, width):
    path = made(tmp_path / "a.html", Report([log, log]))
    size = {"width": width, "height": 844}
    with opened(browser, path, viewport=size, color_scheme="dark", is_mobile=width < 500) as tab:
        tab.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        background = "getComputedStyle(document.body).backgroundColor"
        axis = "getComputedStyle(document.querySelector('svg .role-axis-title text')).fill"
        dark = tab.page.evaluate(background), tab.page.evaluate(axis)
        tab.page.emulate_media(media="print")
        paper = tab.page.evaluate(background), tab.page.evaluate(axis)
        assert dark[0] == "rgb(15, 19, 25)" and paper[0] == "rgb(255, 255, 255)"
        assert dark[1] != paper[1], "charts follow without being drawn again"
        assert tab.page.pdf(format="A4").startswith(b"%PDF")
        assert tab.problems == []


@pytest.mark.slow
def test_the_page_of_a_growing_log_loads_itself_again(browser, log, tmp_path):
    path = made(tmp_path / "a.html", Report([log]), reload_after=2)
    with opened(browser, path) as tab:
        tab.page.wait_for_selector(".live")
        path.write_text(Report([log]).html(with_code=False), encoding="utf-8")
        tab.page.wait_for_selector(".live", state="detached", timeout=60_000)


@pytest.mark.slow
def test_a_matrix(browser, tmp_path):
    rows = matrix.Matrix(
        [
            bench(tmp_path / "a.json", tvmtune=10.0, onnxruntime=15.5),
            bench(tmp_path / "b.json", sample.HOSTILE, tvmtune=66.25),
        ]
    )
    path = tmp_path / "a.html"
    path.write_text(rows.html(), encoding="utf-8")
    with opened(browser, path) as tab:
        latencies = {row[1]: row[3:] for row in tab.rows("#latency tbody tr")}
        assert latencies == {"tvmtune": ["66.25", "10.0"], "onnxruntime": ["", "15.5"]}
        assert "335.9" in tab.text("#published") and "335.9" not in tab.text("#latency")
        assert tab.page.locator("#bars svg").count() == 2
        assert tab.page.evaluate("window.ran") is None
        assert tab.problems == [] and tab.requests == [tab.page.url]


@pytest.mark.slow
def test_fifty_thousand_trials_fit_a_page(browser, tmp_path):
    """How fast it opens is measured in ``benchmarks/report_pages.py``."""
    large = tmp_path / "large.json"
    source = tmp_path / "source.json"
    sample.write(source)
    large_log.grow(source, large, 50_000)
    log = read_log(large)
    assert len(log.trials) == 50_000
    path = made(tmp_path / "a.html", Report([log]))
    assert path.stat().st_size < 5e6
    with opened(browser, path) as tab:
        assert tab.text("[data-name=s0-trials]") == "50,000"
        tasks = table.tasks(log)
        rows = tab.rows("table.tasks tbody tr")
        assert [float(row[6]) for row in rows] == tasks["best_ms"]
        assert [int(row[4]) for row in rows] == tasks["failed"]
        tab.page.click("details.task summary")
        tab.page.wait_for_selector("details.task [data-chart] svg")
        assert tab.problems == []
