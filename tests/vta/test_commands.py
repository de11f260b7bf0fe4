"""The commands of ``tvmtune vta``."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cli.commands import complaint, tvmtune
from libraries import make_library
from models import tiny_cnn
from quantize import cnn
from tvmtune import api, networks
from tvmtune.cli import group
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune_vta.commands import group as commands
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.program import Program
from vta import small
from vta.small import Y


@pytest.fixture
def stream(tmp_path) -> Path:
    """A program with its inputs and expected outputs."""
    held = small.memory()
    program = dataclasses.replace(
        small.program(), contents=held, expected={Y: small.expected(held)}
    )
    program.save(tmp_path / "stream.npz")
    return tmp_path / "stream.npz"


def run(*words: object) -> str:
    done = CliRunner().invoke(commands, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_group_is_registered():
    assert "tvmtune vta --help" in CliRunner().invoke(group, ["--help"]).output
    assert "disasm" in CliRunner().invoke(group, ["vta", "--help"]).output


def test_disasm_prints_a_line_per_instruction(stream):
    program = Program.load(stream)
    title, *lines = run("disasm", stream).splitlines()
    assert "1x16_i8w8a32_15_15_18_17" in title
    assert len(lines) == len(program.instructions)
    assert "LOAD UOP" in lines[0]
    assert lines[0].endswith("; uops")
    assert len(run("disasm", "--uops", stream).splitlines()) == 1 + len(lines) + len(program.uops)


def test_check_compares_expected_outputs(stream, tmp_path):
    assert "its outputs are right in all orders" in run("check", stream)
    program = Program.load(stream)
    wrong = program.expected[Y].copy()
    wrong.flat[3] += 1
    dataclasses.replace(program, expected={Y: wrong}).save(tmp_path / "wrong.npz")
    with pytest.raises(TvmtuneError, match=f"1 of {wrong.size} values of 'y' are wrong"):
        run("check", tmp_path / "wrong.npz")
    dataclasses.replace(program, contents={}).save(tmp_path / "bare.npz")
    assert "not run, because the file has no contents of x, w" in run(
        "check", tmp_path / "bare.npz"
    )


def test_layers_lists_the_device_of_each_layer(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.mixed().to_onnx())
    rows = json.loads(run("layers", tmp_path / "cnn.onnx", "--json"))
    assert [row["on"] for row in rows if row["layer"].startswith("conv2d_packed")] == ["VTA"] * 4
    assert [row["layer"] for row in rows if row["on"].startswith("CPU: its 40 groups")]
    assert {row["layer"] for row in rows if row["on"] == "CPU: not a convolution or a sum"} == {
        "concat",
        "max_pool2d",
    }
    assert rows[0]["on"] == "CPU: before the region"
    assert rows[-1]["on"] == "CPU: after the region"
    text = run("layers", tmp_path / "cnn.onnx")
    assert "not multiples of 16 channels" in text


def test_layers_lists_reasons_even_if_nothing_fits(tmp_path):
    """A network that VTA runs nothing of is the one whose reasons one wants to read."""
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    tiny = Config().as_dict() | {"LOG_UOP_BUFF_SIZE": 3}
    (tmp_path / "vta_config.json").write_text(json.dumps(tiny))
    rows = json.loads(
        run("layers", tmp_path / "cnn.onnx", "--json", "--config", tmp_path / "vta_config.json")
    )
    on = [
        row["on"] for row in rows if row["layer"].startswith(("conv2d_packed", "conv2d to", "sum"))
    ]
    assert on and all(
        ("CPU: " in each and "no tile fits" in each) or "no room" in each for each in on
    )


def test_a_layer_with_one_output_vector_says_so(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.forked().to_onnx())
    text = run("layers", tmp_path / "cnn.onnx", "--target-attr", "start-op=relu", "--json")
    (why,) = {row["on"] for row in json.loads(text) if "too small" in row["on"]}
    assert "a tile of 1 outputs is too small: an accumulator would be written twice" in why


def test_layers_takes_attributes_of_the_target(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.mixed().to_onnx())
    words = ["layers", tmp_path / "cnn.onnx", "--json"]
    assert run(*words, "--target-attr", "config=pynq") == run(*words, "--config", "pynq")
    for wrong, message in (
        (["--target-attr", "config"], "--target-attr takes K=V, not 'config'"),
        (["--target-attr", "config=sim", "--config", "sim"], "config is given twice"),
        (["--target-attr", "konfig=sim"], "Did you mean config"),
    ):
        with pytest.raises(UsageError, match=message):
            run(*words, *wrong)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_dtypes_are_rejected_by_name(dtype, tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    network = networks.load(str(tmp_path / "cnn.onnx"), dtype=dtype)
    with pytest.raises(UsageError, match=f"to int8, and this one is {dtype}: omit --dtype {dtype}"):
        api.plan(network, "vta")


@pytest.mark.slow
def test_layers_lists_scales_and_noise(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    samples = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype("float32")
    np.savez(tmp_path / "samples.npz", data=samples)
    words = [tmp_path / "cnn.onnx", "--scales", "--calibration", tmp_path / "samples.npz"]
    rows = json.loads(run("layers", *words, "--json"))
    assert all(row["sqnr"] > 20 for row in rows if row["on"] == "VTA")
    assert "SQNR dB" in run("layers", *words)


def test_profile_models_and_plots_the_time(stream, tmp_path):
    text = run("profile", stream, "-o", tmp_path / "time.svg")
    assert "ms modeled" in text
    assert "compute for load to compute" in text
    boxes = ET.parse(tmp_path / "time.svg").findall("{http://www.w3.org/2000/svg}rect")
    assert boxes
    report = json.loads(run("profile", stream, "--json"))
    assert report["cycles"] >= report["bound"] > 0


@pytest.mark.slow
def test_commands_accept_libraries(tmp_path):
    """It also breaks down the time of a run."""
    (tmp_path / "cnn.onnx").write_bytes(cnn.mixed().to_onnx())
    done = tvmtune("compile", "cnn.onnx", "--target", "vta", "-o", "lib.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = [
        json.loads(line)
        for line in run(
            "profile", tmp_path / "lib.so", "-o", tmp_path / "t.svg", "--json"
        ).splitlines()
    ]
    assert len(report) == 3
    assert (tmp_path / "t-3.svg").is_file()
    svg = "{http://www.w3.org/2000/svg}"
    layers = ET.parse(tmp_path / "t.svg").findall(f"{svg}text[@class='layer']")
    assert len(layers) == 2, "left and right"
    assert run("check", tmp_path / "lib.so").count("its outputs are right in all orders") == 3
    assert len(run("dump", tmp_path / "lib.so", "-o", tmp_path / "stream.npz").splitlines()) == 3
    assert "its outputs are right in all orders" in run("check", tmp_path / "stream-3.npz")
    assert run("disasm", tmp_path / "lib.so").count("FINISH") == 3
    done = tvmtune("bench", "lib.so", "--repeat", 3, "--json", "-", cwd=tmp_path)
    parts = json.loads(done.stdout)["modelled"]
    assert parts["launches"] == 3
    assert parts["accelerator_ms"] + parts["launches_ms"] == pytest.approx(
        sum(1e3 * each["seconds"] for each in report)
    )
    assert parts["borders_ms"] > 0
    assert parts["cpu_ms"] > 0
    (own,) = json.loads(done.stdout)["runs"]
    assert own["modelled_ms"] == parts["total_ms"]
    assert own["throughput"] == pytest.approx(1e3 / parts["total_ms"])
    shown = tvmtune("bench", "lib.so", "--repeat", 3, "--vs", "onnxruntime", cwd=tmp_path).stdout
    assert "modeled ms" in shown and "median ms" in shown
    (row,) = (line for line in shown.splitlines() if "tvmtune " in line and "0.1" in line)
    cells = [cell.strip() for cell in row.split("│")][1:-1]
    assert cells[4:9] == [""] * 5, "no times of the simulation"
    assert parts["total_ms"] < 1e3 * sum(each["seconds"] for each in report) + 1e3


@pytest.mark.slow
def test_a_library_for_another_target_has_no_streams(tmp_path):
    library = make_library(tiny_cnn(), tmp_path, threads=1)
    done = tvmtune("vta", "profile", library, cwd=tmp_path)
    assert done.returncode == 1
    assert "runs nothing on VTA" in complaint(done.stderr)


@pytest.mark.slow
def test_other_files_are_rejected(tmp_path):
    (tmp_path / "stream.npz").write_bytes(b"PK nothing")
    for word in ("disasm", "check", "profile"):
        done = tvmtune("vta", word, "stream.npz", cwd=tmp_path)
        assert done.returncode == 1
        assert "is not a VTA program, or is truncated" in complaint(done.stderr)
    done = tvmtune("vta", "disasm", "nothing.npz", cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing.npz: cannot be read: No such file" in complaint(done.stderr)
