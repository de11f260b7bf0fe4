"""``tvmtune bench --vs``: all peers side by side in one process."""

from __future__ import annotations

import json

import pytest

from cli.commands import tvmtune
from processes import MARK, after_a_while
from tvmtune.bench import peers


@pytest.fixture(scope="module")
def installed() -> list[str]:
    return [name for name in peers.PEERS if peers.peer(name).available() is None]


@pytest.mark.slow
def test_installed_peers_take_part_if_they_can_read_the_network(
    tiny_library, installed, tmp_path, inductor_cache
):
    """TVM's threads, three pools of OpenMP and two of their own, and each has its full share.

    LiteRT, which cannot read an ONNX network, is skipped with the reason.
    """
    (tmp_path / "here").mkdir()
    done = tvmtune(
        *("bench", tiny_library, "--vs", "all", "--repeat", "3", "--threads", "1", "--json", "-"),
        cwd=tmp_path / "here",
        env={MARK: str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    unable = [name for name in installed if name == "litert"]
    assert [run["runtime"] for run in report["runs"]] == [
        "tvmtune",
        *(name for name in installed if name not in unable),
    ]
    for run in report["runs"][1:]:
        assert run["error"] < 1e-5, run
        assert run["threads"] == 1
        assert run["version"]
    skipped = [note for note in report["notes"] if "skipped" in note]
    assert [note.split()[0] for note in skipped] == unable
    assert all("not from a .tflite file" in note for note in skipped)
    assert list((tmp_path / "here").iterdir()) == []
    assert after_a_while(str(tmp_path), at_most=5) == {}


@pytest.mark.slow
def test_missing_peers_are_reported_and_the_others_timed(tiny_library, installed, tmp_path):
    """Python is made not to find the packages, as if they were not installed."""
    if "onnxruntime" not in installed:
        pytest.skip("the one that stays")
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "gone = ('torch', 'ncnn', 'openvino')\n"
        "util.find_spec = lambda name, *more: None if name in gone else find(name, *more)\n"
    )
    done = tvmtune(
        *("bench", tiny_library, "--vs", "torch,torch-compile,ncnn,ov,ort", "--repeat", "2"),
        *("--json", "-"),
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [run["runtime"] for run in report["runs"]] == ["tvmtune", "onnxruntime"]
    for name, package in (
        ("torch", "'tvmtune[torch]'"),
        ("torch-compile", "'tvmtune[torch]'"),
        ("ncnn", "'tvmtune[ncnn]'"),
        ("openvino", "openvino"),
    ):
        assert f"{name} is not installed: pip install {package}" in report["notes"]
        assert f"note: {name} is not installed" in done.stderr
