"""A 64-bit ARM board next to an accelerator: libraries for its CPU, built here and checked
there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.commands import complaint, tvmtune
from quantize import cnn
from remote import emulated
from remote.served import LIMIT, Farm
from tvmtune.library import metadata

pytestmark = [
    pytest.mark.slow,
    emulated.needed,
]
PLUGIN = Path(__file__).parents[2] / "plugins" / "vta"


def installed(folder: Path) -> list[Path]:
    """The files that let a board find the backend as if pip had installed it."""
    dist_info = folder / "packages" / "tvmtune_vta-0.1.0.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tvmtune-vta\nVersion: 0.1.0\n"
    )
    (dist_info / "entry_points.txt").write_text("[tvmtune]\nvta = tvmtune_vta.hooks\n")
    return [PLUGIN, dist_info.parent]


def test_a_library_is_tuned_for_the_board_and_compared_with_its_cpu(farm: Farm, tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    _, tracker = farm.tracker()
    farm.emulated("ultra96", tracker, path=installed(tmp_path))
    there = ["--remote", f"ultra96@{tracker}"]
    words = ["tune", "cnn.onnx", "--target", "vta", "--target-attr", "config=ultra96", *there]
    words += ["--trials", 4, "--repeat", 3]
    done = tvmtune(*words, "-o", "vta.so", cwd=tmp_path, timeout=4 * LIMIT)
    assert done.returncode == 0, done.stderr
    assert "the output is right" in done.stdout
    described = metadata.read(tmp_path / "vta.so")
    assert described["device"]["target"]["mtriple"] == "aarch64-linux-gnu"
    assert described["tasks"]["exact"] == len(described["tasks"]["list"])
    done = tvmtune("compile", "cnn.onnx", "--target", "arm", *there, "-o", "arm.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for library in ("vta.so", "arm.so"):
        words = ["bench", library, *there, "--check", "--repeat", 3, "--json", "-"]
        done = tvmtune(*words, cwd=tmp_path, timeout=2 * LIMIT)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["runs"][0]["check"]["passed"]
        simulated = any("simulated" in note for note in report["notes"])
        assert simulated == (library == "vta.so")


def test_without_a_board_a_library_is_compiled_unchecked(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    attrs = ["--target", "vta", "--target-attr", "board=ultra96"]
    done = tvmtune("tune", "cnn.onnx", *attrs, "--trials", 4, cwd=tmp_path)
    assert done.returncode == 1
    assert "Name their board with --remote KEY, or tune with --no-compile" in complaint(done.stderr)
    words = ["tune", "cnn.onnx", *attrs, "--trials", 4, "--no-compile", "--log", "log.json"]
    done = tvmtune(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = ["compile", "cnn.onnx", *attrs, "--log", "log.json", "-o", "lib.so"]
    done = tvmtune(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    device = metadata.read(tmp_path / "lib.so")["device"]
    assert device["target"]["mcpu"] == "cortex-a53"
