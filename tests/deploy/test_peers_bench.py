"""All runtimes in one bench, side by side in one process, as a user starts it."""

from __future__ import annotations

import json

import pytest

from cli.commands import tvmtune
from processes import MARK, after_a_while
from tvmtune.deploy import peers


@pytest.fixture(scope="module")
def installed() -> list[str]:
    return [name for name in peers.PEERS if peers.peer(name).available() is None]


@pytest.mark.slow
def test_every_installed_runtime_takes_part(made, installed, tmp_path):
    """TVM's threads, three pools of OpenMP and two of their own, and each has its full share."""
    (tmp_path / "here").mkdir()
    done = tvmtune(
        *("bench", made, "--vs", "all", "--repeat", "3", "--threads", "1", "--json", "-"),
        cwd=tmp_path / "here",
        env={MARK: str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [run["runtime"] for run in report["runs"]] == ["tvmtune", *installed]
    for run in report["runs"][1:]:
        assert run["error"] < 1e-5, run
        assert run["threads"] == 1
        assert run["version"]
    assert not any("left out" in note for note in report["notes"])
    assert list((tmp_path / "here").iterdir()) == []
    assert after_a_while(str(tmp_path), at_most=5) == {}


@pytest.mark.slow
def test_runtimes_that_are_not_there_are_named_and_the_others_timed(made, installed, tmp_path):
    """Python finds no package of these names, as if nobody had installed them."""
    if "onnxruntime" not in installed:
        pytest.skip("the one that stays")
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "gone = ('torch', 'ncnn', 'openvino')\n"
        "util.find_spec = lambda name, *more: None if name in gone else find(name, *more)\n"
    )
    done = tvmtune(
        *("bench", made, "--vs", "torch,torch-compile,ncnn,ov,ort", "--repeat", "2"),
        *("--json", "-"),
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [run["runtime"] for run in report["runs"]] == ["tvmtune", "onnxruntime"]
    for name, package in (
        ("torch", "torch"),
        ("torch-compile", "torch"),
        ("ncnn", "ncnn"),
        ("openvino", "openvino"),
    ):
        assert f"{name} is not installed: pip install {package}" in report["notes"]
        assert f"note: {name} is not installed" in done.stderr
