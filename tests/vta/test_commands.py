"""``tvmtune vta``: what users see of a stream."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cli.commands import complaint, tvmtune
from deploy.building import make_library
from models import tiny_cnn
from quantise import cnn
from tvmtune.cli import group
from tvmtune.errors import TvmtuneError
from tvmtune_vta.commands import group as commands
from tvmtune_vta.program import Program
from vta import small
from vta.small import Y


@pytest.fixture
def stream(tmp_path) -> Path:
    """With everything that it takes to be run and compared."""
    held = small.memory()
    program = dataclasses.replace(
        small.program(), contents=held, expected={Y: small.expected(held)}
    )
    program.save(tmp_path / "stream.npz")
    return tmp_path / "stream.npz"


def shown(*words: object) -> str:
    done = CliRunner().invoke(commands, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_backends_command_is_one_of_tvmtunes():
    assert "tvmtune vta --help" in CliRunner().invoke(group, ["--help"]).output
    assert "disasm" in CliRunner().invoke(group, ["vta", "--help"]).output


def test_each_instruction_has_a_line(stream):
    program = Program.load(stream)
    title, *lines = shown("disasm", stream).splitlines()
    assert "1x16_i8w8a32_15_15_18_17" in title
    assert len(lines) == len(program.instructions)
    assert "LOAD UOP" in lines[0]
    assert lines[0].endswith("; uops")
    assert len(shown("disasm", "--uops", stream).splitlines()) == 1 + len(lines) + len(program.uops)


def test_a_stream_is_held_against_what_it_expects(stream, tmp_path):
    assert "gives what it should in all orders" in shown("check", stream)
    program = Program.load(stream)
    wrong = program.expected[Y].copy()
    wrong.flat[3] += 1
    dataclasses.replace(program, expected={Y: wrong}).save(tmp_path / "wrong.npz")
    with pytest.raises(TvmtuneError, match=f"1 of {wrong.size} values of 'y' are not"):
        shown("check", tmp_path / "wrong.npz")
    dataclasses.replace(program, contents={}).save(tmp_path / "bare.npz")
    assert "no contents of x, w, so that it is not run" in shown("check", tmp_path / "bare.npz")


def test_layers_are_listed_with_their_places(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.mixed().to_onnx())
    rows = json.loads(shown("layers", tmp_path / "cnn.onnx", "--json"))
    assert [row["on"] for row in rows if row["layer"].startswith("conv2d_packed")] == ["VTA"] * 4
    assert [row["layer"] for row in rows if row["on"].startswith("CPU: its 40 groups")]
    assert {row["layer"] for row in rows if row["on"] == "CPU: no layer"} == {
        "concat",
        "max_pool2d",
    }
    assert rows[0]["on"] == "CPU: before the region"
    assert rows[-1]["on"] == "CPU: behind the region"
    text = shown("layers", tmp_path / "cnn.onnx")
    assert "no multiples of 16 channels" in text


@pytest.mark.slow
def test_scales_and_noise_of_each_layer(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    samples = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype("float32")
    np.savez(tmp_path / "samples.npz", data=samples)
    words = [tmp_path / "cnn.onnx", "--scales", "--calibration", tmp_path / "samples.npz"]
    rows = json.loads(shown("layers", *words, "--json"))
    assert all(row["sqnr"] > 20 for row in rows if row["on"] == "VTA")
    assert "SQNR dB" in shown("layers", *words)


def test_its_time_is_modelled_and_drawn(stream, tmp_path):
    text = shown("profile", stream, "-o", tmp_path / "time.svg")
    assert "ms modelled" in text
    assert "compute for load to compute" in text
    boxes = ET.parse(tmp_path / "time.svg").findall("{http://www.w3.org/2000/svg}rect")
    assert boxes
    told = json.loads(shown("profile", stream, "--json"))
    assert told["cycles"] >= told["bound"] > 0


@pytest.mark.slow
def test_a_librarys_streams_are_looked_into_as_well(tmp_path):
    """And where the time of a run goes is told in parts."""
    (tmp_path / "cnn.onnx").write_bytes(cnn.mixed().to_onnx())
    done = tvmtune("compile", "cnn.onnx", "--target", "vta", "-o", "lib.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = [
        json.loads(line)
        for line in shown(
            "profile", tmp_path / "lib.so", "-o", tmp_path / "t.svg", "--json"
        ).splitlines()
    ]
    assert len(told) == 3
    assert (tmp_path / "t-3.svg").is_file()
    svg = "{http://www.w3.org/2000/svg}"
    layers = ET.parse(tmp_path / "t.svg").findall(f"{svg}text[@class='layer']")
    assert len(layers) == 2, "left and right"
    assert shown("check", tmp_path / "lib.so").count("gives what it should in all orders") == 3
    assert len(shown("dump", tmp_path / "lib.so", "-o", tmp_path / "stream.npz").splitlines()) == 3
    assert "gives what it should in all orders" in shown("check", tmp_path / "stream-3.npz")
    assert shown("disasm", tmp_path / "lib.so").count("FINISH") == 3
    done = tvmtune("bench", "lib.so", "--repeat", 3, "--json", "-", cwd=tmp_path)
    parts = json.loads(done.stdout)["modelled"]
    assert parts["launches"] == 3
    assert parts["accelerator_ms"] + parts["launches_ms"] == pytest.approx(
        sum(1e3 * each["seconds"] for each in told)
    )
    assert parts["borders_ms"] > 0
    assert parts["cpu_ms"] > 0
    assert parts["total_ms"] < 1e3 * sum(each["seconds"] for each in told) + 1e3


@pytest.mark.slow
def test_a_library_of_another_target_has_no_streams(tmp_path):
    library = make_library(tiny_cnn(), tmp_path, threads=1)
    done = tvmtune("vta", "profile", library, cwd=tmp_path)
    assert done.returncode == 1
    assert "runs nothing on VTA" in complaint(done.stderr)


@pytest.mark.slow
def test_a_file_that_is_no_stream(tmp_path):
    (tmp_path / "stream.npz").write_bytes(b"PK nothing")
    for word in ("disasm", "check", "profile"):
        done = tvmtune("vta", word, "stream.npz", cwd=tmp_path)
        assert done.returncode == 1
        assert "is no VTA program, or is cut short" in complaint(done.stderr)
    done = tvmtune("vta", "disasm", "nothing.npz", cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing.npz: cannot be read: No such file" in complaint(done.stderr)
