"""``tvmtune report``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from cli.commands import tvmtune
from records.sample_log import trial
from report import sample
from report.test_matrix import bench
from tvmtune.cli import group
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records.log import LogWriter, read_log


@pytest.fixture
def log(tmp_path):
    return sample.write(tmp_path / "log.json")


def refused(*args, kind=UsageError):
    """The message of the error."""
    result = CliRunner().invoke(group, ["report", *map(str, args)])
    assert isinstance(result.exception, kind), result.output
    return str(result.exception)


@pytest.mark.slow
def test_page_tables_and_pictures(log, tmp_path):
    done = tvmtune("report", log, "--csv", "tables", "--png", "pictures", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{tmp_path / 'log.html'}: {(tmp_path / 'log.html').stat().st_size / 1e6:.1f} MB, 32 trials",
        "tables/trials.csv, tables/tasks.csv",
        "pictures: 7 pictures",
    ]
    page = (tmp_path / "log.html").read_text()
    assert sample.HOSTILE not in page
    assert len((tmp_path / "tables" / "trials.csv").read_text().splitlines()) == 33


@pytest.mark.slow
def test_several_logs_compressed_and_torn(log, tmp_path):
    import gzip

    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    log.write_bytes(log.read_bytes()[:-20])
    result = CliRunner().invoke(group, ["report", str(packed), str(log), "--no-code"])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "packed.html").read_text()
    assert 'id="comparison"' in page and "incomplete" in page


@pytest.mark.slow
def test_watch_follows_the_log_and_ends_with_a_final_page(log, tmp_path):
    page = tmp_path / "log.html"
    script = (
        "import sys; from tvmtune.report import watch\n"
        "watch.follow.__kwdefaults__['interval'], watch.REST = 0.2, 0\n"
        "from tvmtune.cli import main; main(sys.argv[1:])"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", script, "report", str(log), "--watch", "--no-code"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(
            lambda: page.exists() and 'data-name="s0-trials" data-value="32"' in page.read_text()
        )
        assert 'data-reload="' in page.read_text()
        with LogWriter(log) as writer:
            writer.trial(trial("a", "another", 1e-3))
        wait_for(lambda: 'data-name="s0-trials" data-value="33"' in page.read_text())
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 0, err
    assert "33 trials" in out
    assert 'data-reload="' not in page.read_text()


@pytest.mark.slow
def test_matrix(tmp_path):
    bench(tmp_path / "a.json", tvmtune=10.0)
    bench(tmp_path / "b.json", "vgg-16", tvmtune=66.25)
    for name in ("m.md", "m.html"):
        args = [
            "report",
            "--matrix",
            tmp_path / "a.json",
            tmp_path / "b.json",
            "-o",
            tmp_path / name,
        ]
        result = CliRunner().invoke(group, list(map(str, args)))
        assert result.exit_code == 0, result.output
        assert result.output == f"{tmp_path / name}: 2 results of 2 networks\n"
        assert "66.250" in (tmp_path / name).read_text()


def test_what_bench_writes_has_its_time(tmp_path):
    from tvmtune.bench.results import BenchResult, RuntimeResult

    run = RuntimeResult("tvmtune", "1", 1, 1, 1, seconds=[0.5])
    result = BenchResult([run], {"name": "net"}, {"backend": "cpu", "model": "m"}, {})
    path = tmp_path / "a.json"
    path.write_text(json.dumps(result.to_json()))
    from tvmtune.report import matrix

    measured = matrix.read(path)
    assert abs(measured.time - time.time()) < 1000
    assert measured.rows[0].ms == 500.0


def test_bad_input_changes_nothing(log, tmp_path):
    before = log.read_bytes()
    assert "a report is an HTML page" in refused(log, "-o", log)
    page = tmp_path / "page.html"
    page.write_bytes(before)
    assert "a file that this command needs" in refused(page, "-o", page)
    assert "ends in .html" in refused(log, "-o", tmp_path / "log.txt")
    assert "there is no directory" in refused(log, "-o", tmp_path / "none" / "a.html")
    assert "are for logs" in refused(log, "--matrix", "--watch")
    assert "there is no log" in refused(tmp_path / "none.json", kind=TvmtuneError)
    assert "bench --json" in refused(log, "--matrix", kind=TvmtuneError)
    other = tmp_path / "other.html"
    other.write_text("not a log")
    assert "not a tvmtune log" in refused(other, "-o", tmp_path / "a.html", kind=TvmtuneError)
    assert log.read_bytes() == page.read_bytes() == before and not (tmp_path / "a.html").exists()


def test_a_table_never_replaces_a_log(log, tmp_path):
    named = tmp_path / "log.csv"
    log.rename(named)
    before = named.read_bytes()
    assert "a file that this command needs" in refused(named, "--csv", named)
    assert named.read_bytes() == before


def test_without_the_extra_one_message_says_how_to_get_it(log, tmp_path):
    script = (
        "import sys; sys.modules['vl_convert'] = None\n"
        "from tvmtune.cli import main; main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "report", str(log)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "tvmtune: reports need the package vl-convert-python, which is not installed here (import of "
        "vl_convert halted; None in sys.modules): pip install 'tvmtune[report]'\n"
    )
    assert not (tmp_path / "log.html").exists()


@pytest.mark.slow
def test_the_report_reads_a_log_while_it_is_written_to(log):
    with LogWriter(log):
        assert CliRunner().invoke(group, ["report", str(log), "--no-code"]).exit_code == 0
    assert len(read_log(log).trials) == 32


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
