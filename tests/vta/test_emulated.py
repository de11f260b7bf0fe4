"""A 64-bit ARM board beside an accelerator: libraries for its CPU, made here and checked there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.commands import complaint, tvmtune
from farm.served import LIMIT, Farm
from quantise import cnn
from tvmtune.deploy import metadata

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("apt-get") and shutil.which("dpkg-deb")),
        reason="the emulated board is made of Debian's packages",
    ),
]
PLUGIN = Path(__file__).parents[2] / "plugins" / "vta"


def installed(folder: Path) -> list[Path]:
    """What a board needs on its path to find the backend as if pip had installed it."""
    told = folder / "packages" / "tvmtune_vta-0.1.0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: tvmtune-vta\nVersion: 0.1.0\n")
    (told / "entry_points.txt").write_text("[tvmtune]\nvta = tvmtune_vta.hooks\n")
    return [PLUGIN, told.parent]


def test_a_library_is_tuned_for_the_board_and_compared_with_its_cpu(farm: Farm, tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    _, tracker = farm.tracker()
    farm.emulated("ultra96", tracker, path=installed(tmp_path))
    there = ["--remote", f"ultra96@{tracker}"]
    words = ["tune", "cnn.onnx", "--target", "vta", "--target-attr", "config=ultra96", *there]
    done = tvmtune(*words, "--trials", 4, "-o", "vta.so", cwd=tmp_path, timeout=4 * LIMIT)
    assert done.returncode == 0, done.stderr
    assert "the output is right" in done.stdout
    told = metadata.read(tmp_path / "vta.so")
    assert told["device"]["target"]["mtriple"] == "aarch64-linux-gnu"
    assert told["tasks"]["exact"] == len(told["tasks"]["list"])
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


def test_without_a_board_to_check_it_a_library_for_one_is_only_compiled(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    attrs = ["--target", "vta", "--target-attr", "board=ultra96"]
    done = tvmtune("tune", "cnn.onnx", *attrs, "--trials", 4, cwd=tmp_path)
    assert done.returncode == 1
    assert "name their board with --remote KEY, or only tune (--no-compile)" in complaint(
        done.stderr
    )
    words = ["tune", "cnn.onnx", *attrs, "--trials", 4, "--no-compile", "--log", "log.json"]
    done = tvmtune(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = ["compile", "cnn.onnx", *attrs, "--log", "log.json", "-o", "lib.so"]
    done = tvmtune(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    device = metadata.read(tmp_path / "lib.so")["device"]
    assert device["target"]["mcpu"] == "cortex-a53"
