"""``tvmtune bench``: the table, JSON output and exit status."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from cli.commands import complaint, tvmtune
from libraries import make_library, spoiled
from models import tiny_cnn
from tvmtune.bench.peers.onnx_runtime import OnnxRuntime
from tvmtune.cli import bench
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library import metadata
from tvmtune.remote.protocol import Unreachable

os.environ.setdefault("TVM_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return make_library(tiny_cnn(), tmp_path_factory.mktemp("bench"), threads=1)


@pytest.fixture(scope="module")
def wrong(library, tmp_path_factory):
    """A library with one wrong weight and the metadata of the right one."""
    path = make_library(
        spoiled(tiny_cnn()), tmp_path_factory.mktemp("wrong"), threads=1, check=False
    )
    metadata.append(path, metadata.read(library))
    return path


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Restores the thread variables, which the command sets in the process of the tests."""
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))


def run(*args: object):
    return CliRunner().invoke(bench.command, ["--repeat", "3", *map(str, args)])


def error(kind: type[TvmtuneError], *args: object) -> str:
    result = run(*args)
    assert type(result.exception) is kind, result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.mark.slow
def test_the_table_has_a_row_for_the_library(library):
    result = run(library, "--check")
    assert result.exit_code == 0, result.exception
    lines = result.output.splitlines()
    assert lines[0].startswith("model, batch 1, on the test's CPU")
    for word in ("runtime", "threads", "median ms", "mean ms", "std", "p95", "min", "items/s"):
        assert word in result.output
    assert "tvmtune" in result.output
    assert "time / tvmtune" not in result.output, "there is nothing to compare with"
    assert "the output is right" in result.output


@pytest.mark.slow
def test_wrong_outputs_exit_with_1(wrong, tmp_path):
    report = tmp_path / "report.json"
    text = error(TvmtuneError, wrong, "--check", "--json", report)
    assert "is wrong: output 'logits' is off by" in text
    check = json.loads(report.read_text())["runs"][0]["check"]
    assert check["passed"] is False
    assert check["error"] > 1e-3


@pytest.mark.slow
def test_wrong_outputs_exit_with_1_for_a_shell(wrong, tmp_path):
    done = tvmtune("bench", wrong, "--check", cwd=tmp_path, env={"TVMTUNE_BENCH_REPEAT": "2"})
    assert done.returncode == 1
    assert "is wrong: output 'logits' is off by" in complaint(done.stderr)
    assert "median ms" in done.stdout


@pytest.mark.slow
def test_a_file_that_is_not_a_library_is_rejected(tmp_path):
    (tmp_path / "lib.so").write_bytes(b"\x7fELF")
    for command in ("bench", "run", "inspect"):
        done = tvmtune(command, "lib.so", cwd=tmp_path)
        assert done.returncode == 1
        assert "lib.so is truncated" in complaint(done.stderr)
        done = tvmtune(command, "none.so", cwd=tmp_path)
        assert done.returncode == 2
        assert "there is no library none.so" in complaint(done.stderr)


@pytest.mark.slow
def test_json_to_a_file(library, tmp_path):
    pytest.importorskip("onnxruntime")
    report = tmp_path / "report.json"
    result = run(library, "--vs", "ort", "--check", "--profile", "--json", report)
    assert result.exit_code == 0, result.exception
    contents = json.loads(report.read_text())
    assert {"runs", "network", "device", "host", "notes"} < set(contents)
    own, other = contents["runs"]
    assert [own["runtime"], other["runtime"]] == ["tvmtune", "onnxruntime"]
    assert own["median_ms"] > 0
    assert own["repeats"] == 3
    assert other["threads"] == own["threads"] == 1
    assert own["check"]["passed"] is True
    assert sum(kernel["share"] for kernel in own["kernels"]) == pytest.approx(1)
    assert other["error"] < 1e-5
    assert "time / tvmtune" in result.output


def test_without_any_of_the_runtimes_it_fails_after_its_table(library, tmp_path, monkeypatch):
    monkeypatch.setattr(OnnxRuntime, "package", "no_such_runtime")
    report = tmp_path / "report.json"
    text = error(TvmtuneError, library, "--vs", "ort", "--json", report)
    assert text == "no runtime of --vs took part in the comparison: the notes say why"
    contents = json.loads(report.read_text())
    assert [run["runtime"] for run in contents["runs"]] == ["tvmtune"]
    assert contents["notes"][0] == "onnxruntime is not installed: pip install no_such_runtime"


@pytest.mark.slow
def test_standard_output_is_only_the_json(library, tmp_path):
    done = tvmtune("bench", library, "--repeat", 2, "--json", "-", "--check", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][0]["check"]["passed"] is True
    assert "the output is right" in done.stderr


def test_the_profile_lists_kernels(library):
    result = run(library, "--profile")
    assert "fused_conv2d" in result.output
    assert "share" in result.output


def test_inputs_from_a_file(library, tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, data=np.ones((1, 3, 32, 32), "float32"))
    assert run(library, "--input", path).exit_code == 0
    np.savez(path, data=np.ones((1, 3, 8, 8), "float32"))
    text = error(UsageError, library, "--input", path)
    assert "1x3x8x8" in text
    assert "1x3x32x32" in text


def test_invalid_options_are_rejected(library, tmp_path):
    assert "Did you mean onnxruntime" in error(UsageError, library, "--vs", "onxruntime")
    assert "no tracker answers" in error(Unreachable, library, "--remote", "a@127.0.0.1:1")
    assert "on this machine only" in error(UsageError, library, "--remote", "a", "--profile")
    assert "there is no library" in error(UsageError, tmp_path / "none.so")
    assert "number of threads" in error(UsageError, library, "--threads", 0)
    assert "no directory" in error(UsageError, library, "--json", tmp_path / "none" / "r.json")
    for option in ("--repeat", "--number"):
        assert run(library, option, 0).exit_code == 2


def test_a_library_without_reference_outputs_cannot_be_checked(library, tmp_path):
    path = shutil.copy(library, tmp_path)
    metadata.append(path, metadata.read(path) | {"check": None})
    assert "has no reference outputs" in error(UsageError, path, "--check")
    assert run(path).exit_code == 0


def test_a_different_thread_count_is_noted(library, tmp_path):
    path = shutil.copy(library, tmp_path)
    metadata.append(path, metadata.read(path) | {"threads": 4096})
    result = run(path, "--threads", 1)
    assert "note: tuned for 4096 threads, run with 1" in result.output
