"""``tvmtune doctor``: every problem becomes a row, and none crashes the command."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tvmtune.cli import doctor

SCRIPT = "from tvmtune.cli.doctor import command; command(['--json'])"


def run_doctor(cwd: Path, **env: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit status and rows by name, from a separate process."""
    clean = {key: value for key, value in os.environ.items() if key != "TVMTUNE_LINKER"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=clean | env,
        timeout=200,
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] == (done.returncode == 0)
    return done.returncode, {row["name"]: row for row in report["rows"]}


def statuses(rows: dict[str, dict[str, str]], *names: str) -> list[str]:
    return [rows[name]["status"] for name in names]


@pytest.mark.slow
def test_a_healthy_machine_passes(tmp_path):
    status, rows = run_doctor(tmp_path)
    assert status == 0
    assert statuses(rows, "python", "tvm", "linker", "threads", "kernel", "directory") == (
        ["pass"] * 6
    )
    assert "TVM alone would use" in rows["threads"]["detail"]
    assert "built, linked, run and checked" in rows["kernel"]["detail"]


def test_an_incompatible_tvm_ffi_is_named_before_tvm_is_loaded(tmp_path):
    info = tmp_path / "path" / "apache_tvm_ffi-0.1.15.post1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: apache-tvm-ffi\nVersion: 0.1.15.post1\n"
    )
    path = os.pathsep.join(filter(None, [str(info.parent), os.environ.get("PYTHONPATH")]))
    status, rows = run_doctor(tmp_path, PYTHONPATH=path)
    assert status == 1
    assert statuses(rows, "tvm", "kernel") == ["fail", "note"]
    assert "apache-tvm-ffi is 0.1.15.post1, not 0.1.14.post1" in rows["tvm"]["detail"]
    assert "pip install apache-tvm==" in rows["tvm"]["remedy"]
    assert rows["kernel"]["detail"] == "not tried: fix tvm first"


@pytest.mark.slow
def test_a_missing_linker_is_reported_with_its_package(tmp_path):
    status, rows = run_doctor(tmp_path, PATH=str(tmp_path))
    assert status == 1
    assert statuses(rows, "tvm", "linker", "kernel") == ["pass", "fail", "note"]
    assert "binutils" in rows["linker"]["remedy"]
    assert rows["kernel"]["detail"] == "not tried: fix linker first"


@pytest.mark.slow
def test_a_failing_linker_is_reported(tmp_path):
    tool = tmp_path / "ld"
    tool.write_text("#!/bin/sh\necho cannot link today >&2\nexit 1\n")
    tool.chmod(0o755)
    status, rows = run_doctor(tmp_path, TVMTUNE_LINKER=str(tool))
    assert status == 1
    assert statuses(rows, "linker", "kernel") == ["pass", "fail"]
    assert rows["kernel"]["detail"] == f"link: {tool}: cannot link today"


def test_a_directory_that_cannot_be_written_fails(tmp_path, monkeypatch):
    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    row = doctor._place("directory", lambda: tmp_path, "go elsewhere")
    assert (row.status, row.remedy) == ("fail", "go elsewhere")
    assert row.detail == f"{tmp_path} cannot be used: Read-only file system"


def test_a_full_disk_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "NEEDED_MB", 1e12)
    row = doctor._place("directory", lambda: tmp_path, "go elsewhere")
    assert (row.status, row.remedy) == ("fail", "free at least 1e+12 MB")


def test_a_deleted_directory_fails(tmp_path):
    row = doctor._place("directory", lambda: tmp_path / "gone", "go elsewhere")
    assert (row.status, row.remedy) == ("fail", "go elsewhere")
    assert "gone" in row.detail


def fake_python(folder: Path, body: str) -> str:
    """A script for the doctor to run instead of Python."""
    tool = folder / "python"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    return str(tool)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('echo \'{"stage": "search"}\'; kill -SEGV $$', "search: crashed (Segmentation fault)"),
        ("echo oops >&2; exit 4", "start: oops"),
        ('echo \'{"stage": "run"}\'; echo \'{"sta\'; exit 0', "run: exit status 0"),
        ('echo \'{"stage": "build"}\'; exec sleep 60', "build: timed out after 0.5 s"),
    ],
)
def test_a_crash_or_hang_of_the_child_is_reported_with_its_stage(
    tmp_path, monkeypatch, body, error
):
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, body))
    monkeypatch.setattr(doctor, "DEADLINE", 0.5)
    child = doctor._run_child(["ld"])
    assert child["error"] == error
    row = doctor._kernel(
        doctor.CheckRow("tvm", "pass", ""), doctor.CheckRow("linker", "pass", ""), child
    )
    assert (row.status, row.detail) == ("fail", error)


def test_remedies_are_printed(monkeypatch):
    rows = [doctor.CheckRow("tvm", "fail", "wrong [bold]version", "run: pip install it")]
    monkeypatch.setattr(doctor, "examine", lambda **_: rows)
    result = CliRunner().invoke(doctor.command, [])
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "fail  tvm  wrong [bold]version",
        "           run: pip install it",
        "this machine cannot tune yet: fix what failed",
    ]
