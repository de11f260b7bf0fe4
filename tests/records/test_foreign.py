"""Logs of TVM's former tuners are recognized, and refused with a way forward."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cli.commands import tvmtune
from tvmtune.errors import TvmtuneError
from tvmtune.records.log import read_log

CONV = [["TENSOR", [1, 64, 56, 56], "float32"], ["TENSOR", [64, 64, 3, 3], "float32"]]
KNOBS = [["tile_oc", "sp", [-1, 16]], ["tile_ow", "sp", [-1, 8]], ["unroll_kw", "ot", True]]
RESULT = [[0.0021], 0, 1.4, 1653898629.7]

AUTOTVM = {
    "input": ["llvm -keys=cpu", "conv2d_NCHWc.x86", [*CONV, [1, 1], [1, 1, 1, 1], [1, 1]], {}],
    "config": {"index": 172, "code_hash": None, "entity": KNOBS},
    "result": RESULT,
    "version": 0.2,
    "tvm_version": "0.8.0",
}
AUTOTVM_OF_2019 = {
    "i": [
        "llvm",
        "topi_x86_conv2d_NCHWc",
        CONV,
        {},
        ["conv2d", [1, 64, 56, 56, "float32"], [64, 64, 3, 3, "float32"], [1, 1], [1, 1]],
        {"i": 172, "t": "direct", "c": None, "e": KNOBS},
    ],
    "r": RESULT,
    "v": 0.1,
}
AUTO_SCHEDULER = {
    "i": [
        [
            '["d7b65649a4dd54becea0a52aabbc5af5", 1, 1000]',
            "llvm -keys=cpu",
            [2, 64, 64, 0],
            "",
            1,
            [],
        ],
        [[], [["SP", 2, 0, 1000, [8, 5], 1], ["RE", 2, [0, 1, 2]], ["AN", 2, 0, 3]]],
    ],
    "r": RESULT,
    "v": "v0.6",
}

FORMATS = [
    pytest.param(AUTOTVM, "AutoTVM", id="AutoTVM"),
    pytest.param(AUTOTVM_OF_2019, "AutoTVM", id="AutoTVM of 2019"),
    pytest.param(AUTO_SCHEDULER, "auto_scheduler", id="auto_scheduler"),
]


def write(path: Path, record: Any) -> Path:
    text = f"{json.dumps(record)}\n" * 2
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(("record", "tool"), FORMATS)
@pytest.mark.parametrize("name", ["old.json", "old.log.gz"])
def test_a_log_of_a_former_tuner_is_named(tmp_path, record, tool, name):
    with pytest.raises(TvmtuneError, match=f"{name} is a log of {tool}, .*docs/migration.md"):
        read_log(write(tmp_path / name, record))


@pytest.mark.parametrize(("record", "tool"), FORMATS)
def test_a_log_whose_last_record_is_cut_is_named_too(tmp_path, record, tool):
    path = write(tmp_path / "old.json", record)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TvmtuneError, match=f"log of {tool}"):
        read_log(path)


@pytest.mark.parametrize(
    "record",
    [
        {"i": [], "r": []},
        {"i": 3, "r": [], "v": 0.1},
        {"input": "x", "config": 3, "result": 1},
        {"v": "v0.6"},
        {"input": [], "config": {}},
    ],
)
def test_other_records_are_no_log_of_a_former_tuner(tmp_path, record):
    with pytest.raises(TvmtuneError, match="does not begin with a header"):
        read_log(write(tmp_path / "other.json", record))


@pytest.mark.parametrize(("record", "tool"), FORMATS[::2])
@pytest.mark.parametrize(
    "words",
    [("compile", "resnet-18", "--log", "old.json"), ("distill", "old.json")],
    ids=["compile", "distill"],
)
def test_commands_say_so_and_leave_the_log_alone(tmp_path, record, tool, words):
    path = write(tmp_path / "old.json", record)
    before = path.read_bytes()
    done = tvmtune(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert f"old.json is a log of {tool}" in done.stderr
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"]
