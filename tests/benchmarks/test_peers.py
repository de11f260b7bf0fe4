"""``benchmarks/peers.py`` as a whole, on a small network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from models import tiny_cnn

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peers.py"


def peers(out: Path, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ)
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(path), env.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out), *words],
        capture_output=True,
        text=True,
        env=env,
    )


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--networks", "resnet-19"], "no network 'resnet-19'. Did you mean resnet-18"),
        (["--networks", ""], "nothing to measure"),
        (["--files", "no.onnx"], "--files: there is no file no.onnx"),
        (["--kinds", "blessed"], "--kinds: there is no 'blessed'. Known: untuned, shipped, tuned"),
        (["--threads", "0"], "--threads must be from 1"),
        (["--threads", "two"], "--threads takes numbers such as 1,2, not 'two'"),
        (["--repeat", "0"], "--repeat must be at least 1, not 0"),
        (["--tune", "long"], "--tune takes seconds, or a time such as 90s"),
        (["--peers", "tensorrt"], "no runtime 'tensorrt'"),
        (["--layout", "NC"], "--layout is NHWC or NCHW, not 'NC'"),
    ],
)
def test_a_wrong_option_is_one_message(tmp_path, words, message):
    done = peers(tmp_path / "out", *words)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_report_without_rows_is_an_error(tmp_path):
    done = peers(tmp_path, "--report")
    assert done.returncode == 1
    assert done.stderr.startswith("error: there are no rows in")


@pytest.mark.slow
def test_rows_are_measured_once_and_a_crashing_peer_is_left_out(tmp_path):
    pytest.importorskip("ncnn")
    pytest.importorskip("pnnx")
    # A runtime that crashes as soon as it is used.
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "ncnn.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    model = tmp_path / "tiny.onnx"
    model.write_bytes(tiny_cnn().SerializeToString())
    out = tmp_path / "out"
    words = ["--files", str(model), "--kinds", "untuned", "--peers", "onnxruntime,ncnn",
             "--threads", "1", "--repeat", "3", "--wait", "1s"]  # fmt: skip
    done = peers(out, *words, path=broken)
    assert done.returncode == 0, done.stderr
    file = out / "rows.jsonl"
    (line,) = file.read_text().splitlines()
    row = json.loads(line)
    assert "SIGSEGV" in row["missing"]["ncnn"]
    assert [run["runtime"] for run in row["runs"]] == ["untuned", "onnxruntime"]
    assert set(row["runs"][0]["errors"]) == {"1", "0.001", "1000"}
    assert row["runs"][0]["check"]["passed"]
    assert row["peak"]["gflops"] > 0 and row["peak"]["memory_gb_s"] > 0
    assert {layer["gflop"] is None for layer in row["layers"]["untuned"]} == {True, False}

    library = out / "so" / next(path.name for path in (out / "so").glob("*.so"))
    made = library.stat().st_mtime_ns
    assert "measured already" in peers(out, *words, path=broken).stderr
    assert len(file.read_text().splitlines()) == 1

    file.write_text(line[:100])  # torn
    again = peers(out, *words, path=broken)
    assert again.returncode == 0 and ":1 is not JSON and is ignored (torn" in again.stderr
    assert library.stat().st_mtime_ns == made  # only the row was lost
    shown = peers(out, "--report").stdout
    assert "| tiny.onnx | 1 |" in shown and "- tiny.onnx, ncnn: ncnn is left out" in shown


@pytest.mark.slow
def test_a_network_that_cannot_be_compiled_is_reported_and_tried_again(tmp_path):
    model = tmp_path / "broken.onnx"
    model.write_bytes(b"not a model")
    words = ["--files", str(model), "--kinds", "untuned", "--peers", "onnxruntime", "--wait", "1s"]
    for _ in range(2):
        done = peers(tmp_path / "out", *words)
        assert done.returncode == 1
        assert "broken.onnx failed: " in done.stderr and "Traceback" not in done.stderr
    assert "- broken.onnx: " in peers(tmp_path / "out", "--report").stdout
