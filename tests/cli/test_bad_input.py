"""Bad input yields one clear message and exit status 1 or 2, and damages no file."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from cli.commands import complaint, tvmtune
from disks import NO_BYTECODE, mounted
from models import one_node, tiny_cnn, tiny_encoder
from tvmtune import api
from tvmtune.cli import main
from tvmtune.records.log import FORMAT, LogWriter
from tvmtune.records.schema import header as header_line

Invoke = Callable[..., tuple[int, str]]
BUDGET = ("--trials", "9", "--no-compile")


@pytest.fixture(scope="session")
def plan(tmp_path_factory: pytest.TempPathFactory) -> api.Plan:
    path = tmp_path_factory.mktemp("plan") / "tiny.onnx"
    onnx.save(tiny_cnn(), path)
    return api.plan(api.load(str(path)))


OLDER = b"\x7fELF, an older library"


@pytest.fixture
def invoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Invoke:
    """Exit status and message of a command run next to ``tiny.onnx``; fails if the folder changes."""
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str]:
        before = contents(tmp_path)
        with pytest.raises(SystemExit) as ended:
            main(list(args))
        captured = capsys.readouterr()
        assert captured.out == ""
        assert contents(tmp_path) == before
        assert isinstance(ended.value.code, int)
        return ended.value.code, complaint(captured.err)

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.mark.parametrize("name", ["tune", "tasks", "compile"])
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--network", "resnet-19"], "'resnet-19' is neither .*Did you mean resnet-18"),
        (["--network", "mobilnet"], "'mobilnet' is neither .*Did you mean mobilenet"),
        (["--network", "tiny.onnx", "--target", "cpuu"], "cpuu.*Did you mean .*cpu"),
        (["--network", "tiny.onnx", "--layout", "NHCW"], "NHCW.*NHWC"),
        (["--network", "tiny.onnx", "--target-attr", "mcpuu=znver4"], "mcpuu.*Did you mean mcpu"),
        (["--network", "tiny.onnx", "--target-attr", "mcpu=znver44"], "znver44.*znver4"),
        (["--network", "tiny.onnx", "--target-attr", "mcpu"], "--target-attr takes K=V"),
        (["--network", "tiny.onnx", "--target-attr", "threads=0"], "threads must be from 1 to"),
        (["--network", "tiny.onnx", "--target-attr", "threads=99"], "threads must be from 1 to"),
        (["--network", "tiny.onnx", "--hardware-param", "num_core=1"], "Did you mean num_cores"),
        (["--network", "tiny.onnx", "--batch", "0"], "at least 1, not 0"),
        (["--network", "tiny.onnx", "--batch", "4"], "fixed batch size"),
        (["--network", "tiny.onnx", "--shape", "data:1xtwo"], "--shape takes NAME:"),
        (["--network", "tiny.onnx", "--shape", "dat:1x3x32x32"], "no input 'dat'"),
        (["--network", "absent.onnx"], "absent.onnx does not exist"),
        (["--network", "tinny.onnx"], "tinny.onnx does not exist; did you mean tiny.onnx"),
    ],
)
def test_an_invalid_request_lists_the_alternatives(invoke, name, args, message):
    code, text = invoke(name, *args)
    assert code == 2
    assert re.search(message, text), text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--tuner", "xgbb"], "tuner 'xgbb' is not known. Did you mean xgb"),
        (["--scheduler", "gradent"], "scheduler 'gradent' is not known. Did you mean gradient"),
        (["--trials", "0"], "--trials must be at least 1, not 0"),
        (["--trials", "-5"], "--trials must be at least 1, not -5"),
        (["--trials-per-task", "0"], "--trials-per-task must be at least 1"),
        (["--patience", "0"], "--patience must be at least 1"),
        (["--task-patience", "0"], "--task-patience must be at least 1"),
        (["--max-failure-rate", "1.5"], "--max-failure-rate must be from 0 to 1, not 1.5"),
        (["--tuner", "grid"], "tuner 'grid' enumerates the whole space"),
        (["--repeat", "0"], "--repeat must be at least 1"),
        (["--number", "-1"], "--number must be at least 1"),
        (["--min-repeat-ms", "-1"], "--min-repeat-ms must be"),
        (["--build-timeout", "0"], "--build-timeout must be"),
        (["--run-timeout", "-3"], "--run-timeout must be"),
        (
            ["--time-budget", "soon"],
            "takes seconds, or a time such as 90s, 30m or 1h30m, not 'soon'",
        ),
        (["--time-budget", "-3m"], "--time-budget must be above 0"),
        (["--vs", "onnxruntim"], "onnxruntim"),
        (["--vs", "onnxruntime", "--no-compile"], "--vs has no effect with --no-compile"),
        (["--no-compile", "-o", "lib.so"], "--output has no effect with --no-compile"),
        (["--dry-run", "--fresh"], "--fresh has no effect with --dry-run"),
        (["--tracker", "here:9190"], "--tracker without --remote"),
        (["--hardware-param", "l2_bytes=many"], "--hardware-param l2_bytes takes bytes, or a size"),
        (["--log", "absent/log.json"], "--log absent/log.json: there is no directory absent"),
        (["--log", "."], "is a directory"),
        (["-o", "absent/lib.so"], "-o absent/lib.so: there is no directory absent"),
        (["--log", "/proc/log.json"], "--log /proc/log.json cannot be written"),
    ],
)
def test_an_invalid_option_of_tune_is_named(invoke, args, message):
    code, text = invoke("tune", "--network", "tiny.onnx", *args)
    assert code == 2
    assert message in text


@pytest.mark.sweep
@pytest.mark.parametrize(
    "args",
    [
        ["compile", "-o", "tiny.onnx"],
        ["compile", "-o", "notes.txt"],
        ["compile", "--emit-module", "tiny.onnx"],
        ["tune", "-o", "tiny.onnx"],
        ["tune", "-o", "log.json", "--log", "log.json"],
        ["tune", "--log", "tiny.onnx"],
    ],
    ids=" ".join,
)
def test_outputs_overwrite_only_libraries_that_are_not_in_use(invoke, tmp_path, args):
    (tmp_path / "notes.txt").write_text("not yours")
    code, text = invoke(*args, "--network", "tiny.onnx")
    assert code == 2
    assert "choose another" in text


def test_an_operator_that_cannot_be_compiled_is_named_before_tuning(invoke, tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Det", ["x"], ["y"], name="volume")],
        "determinants",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "net.onnx")
    code, text = invoke("tune", "--network", "net.onnx", *BUDGET)
    assert code == 1
    assert "node 'volume' (Det, opset 17) of net.onnx is not supported" in text


def test_a_network_of_constants_only_has_nothing_to_compile(invoke, tmp_path):
    onnx.save(one_node("Identity"), tmp_path / "same.onnx")
    code, text = invoke("tune", "--network", "same.onnx", *BUDGET)
    assert code == 1
    assert "nothing to compile" in text


@pytest.mark.parametrize("name", ["tune", "tasks", "compile"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is damaged or not an ONNX file"),
        (b"PK\x03\x04" + bytes(64), "zip archive"),
        (b"layers: 18\n", "is not an ONNX file but text"),
        (tiny_cnn().SerializeToString()[:3000], "is damaged or not an ONNX file"),
    ],
    ids=["empty", "a picture", "a zip archive", "text", "truncated"],
)
def test_a_file_that_is_not_a_model_is_recognized(invoke, tmp_path, name, content, message):
    (tmp_path / "net.onnx").write_bytes(content)
    code, text = invoke(name, "--network", "net.onnx")
    assert code == 1
    assert text.startswith("net.onnx")
    assert message in text


@pytest.mark.parametrize("name", ["tune", "tasks", "compile"])
def test_open_shapes_must_be_bound(invoke, tmp_path, name):
    onnx.save(tiny_encoder(sequence="S"), tmp_path / "net.onnx")
    code, text = invoke(name, "--network", "net.onnx")
    assert code == 2
    assert "--shape ids:" in text


@pytest.mark.parametrize("name", ["tune", "tasks", "compile"])
def test_an_unsupported_operator_is_named_with_its_node(invoke, tmp_path, name):
    onnx.save(one_node("Frobnicate", domain="com.acme"), tmp_path / "net.onnx")
    code, text = invoke(name, "--network", "net.onnx")
    assert code in (1, 2)
    assert "Frobnicate" in text
    assert "the_node" in text


def header(plan: api.Plan, **more: Any) -> dict[str, Any]:
    return json.loads(json.dumps(header_line(plan.prepared).fields)) | more


def log_of(plan: api.Plan, path: Path, **more: Any) -> Path:
    with LogWriter(path) as writer:
        writer.append("header", header(plan, **more))
        writer.append("task", {"task": "k", "anchor": "a", "implementations": []})
        writer.append(
            "trial",
            {
                "task": "k",
                "implementation": "direct",
                "workload": "w",
                "candidate": "1",
                "trace": [[], []],
                "seconds": [1.0],
            },
        )
    return path


def other_network(plan: api.Plan) -> dict[str, Any]:
    network = header(plan)["network"]
    return {"network": network | {"name": "vgg-99", "structure_hash": "0" * 16}}


def other_device(plan: api.Plan) -> dict[str, Any]:
    described = header(plan)["device"] | {"model": "another CPU", "identity": "0" * 16}
    return {"device": described}


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["tune", "compile"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_network, "vgg-99"),
        (other_device, "another CPU"),
        (lambda plan: {"format": FORMAT + 1}, "newer tvmtune"),
    ],
    ids=["another network", "another device", "a newer version"],
)
def test_a_log_of_another_network_device_or_version_is_rejected(
    invoke, tmp_path, plan, name, change, message
):
    log_of(plan, tmp_path / "log.json", **change(plan))
    budget = BUDGET if name == "tune" else ()
    code, text = invoke(name, "--network", "tiny.onnx", "--log", "log.json", *budget)
    assert code == 1
    assert "log.json" in text
    assert message in text


def test_a_log_of_this_machine_with_another_target_names_the_difference(invoke, tmp_path, plan):
    described = header(plan)["device"]
    target = described["target"] | {"mcpu": "pentium4"}
    log_of(plan, tmp_path / "log.json", device=described | {"target": target, "identity": "0" * 16})
    _, text = invoke("tune", "--network", "tiny.onnx", "--log", "log.json", *BUDGET)
    assert f"mcpu pentium4 instead of {described['target']['mcpu']}" in text


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("  0: tvm::runtime::CUDADeviceAPI\n\nInternalError: CUDA: out of memory"),
        MemoryError("Unable to allocate 3.00 GiB for an array"),
    ],
)
def test_out_of_memory_is_not_reported_as_a_bug(invoke, monkeypatch, error):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(api, "load", fail)
    code, text = invoke("tasks", "tiny.onnx")
    assert code == 1
    assert "bug" not in text
    end = "Free memory, or use a smaller network or batch."
    assert re.fullmatch(rf"out of memory: .*(out of memory|array)\. {end}", text)


def test_a_missing_package_is_named(invoke, monkeypatch):
    """As on boards, where only the packages of serve and run are installed."""
    monkeypatch.setitem(sys.modules, "rich.table", None)
    monkeypatch.setitem(sys.modules, "rich", None)
    code, text = invoke("networks")
    assert code == 1
    assert "the package rich is not installed here" in text
    assert "bug" not in text


@pytest.mark.parametrize(
    "args",
    [
        ["tune", "--network", "tiny.onnx", *BUDGET, "--log", "log.json"],
        ["compile", "--network", "tiny.onnx", "--log", "log.json"],
        ["distill", "log.json"],
    ],
    ids=["tune", "compile", "distill"],
)
@pytest.mark.parametrize("kind", ["damaged", "something else"])
def test_an_unreadable_log_is_rejected(invoke, tmp_path, plan, args, kind):
    path = log_of(plan, tmp_path / "log.json")
    first, *rest = path.read_bytes().splitlines(keepends=True)
    if kind == "damaged":
        path.write_bytes(first + b"\x00\x00\n" + b"".join(rest))
    else:
        shutil.copy(tmp_path / "tiny.onnx", path)
    code, text = invoke(*args)
    assert code == 1
    assert text.startswith("log.json is not a tvmtune log")
    assert ("line 2" in text) == (kind == "damaged")


@pytest.mark.parametrize(
    "args", [["compile", "--network", "tiny.onnx", "--log", "log.json"], ["distill", "log.json"]]
)
def test_an_empty_or_missing_log_is_rejected(invoke, tmp_path, args):
    assert invoke(*args) == (1, "there is no log at log.json")
    for content in (b"", b'{"type":"header","format":2,"netw'):  # the second after a power cut
        (tmp_path / "log.json").write_bytes(content)
        assert invoke(*args) == (1, "log.json is empty: there is nothing in this log")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--top", "0"], "--top must be at least 1"),
        (["-o", "absent/best.json"], "there is no directory absent"),
        (["-o", "."], "is a directory"),
    ],
)
def test_an_invalid_option_of_distill_is_named(invoke, tmp_path, plan, args, message):
    log_of(plan, tmp_path / "log.json")
    code, text = invoke("distill", "log.json", *args)
    assert code == 2
    assert message in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize(
    "args",
    [
        ["tune", "--network", "../tiny.onnx", *BUDGET],
        ["compile", "--network", "../tiny.onnx"],
        ["distill", "../log.json", "-o", "best.json"],
    ],
)
def test_a_read_only_directory_is_named(invoke, tmp_path, plan, monkeypatch, args):
    log_of(plan, tmp_path / "log.json")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    monkeypatch.chdir(closed)
    code, text = invoke(*args)
    assert code == 2
    assert "cannot be written: Permission denied" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["tune", *BUDGET], id="tune", marks=pytest.mark.slow),
        pytest.param(["compile", "-o", "lib.so"], id="compile"),
    ],
)
def test_without_a_linker_the_message_names_the_remedy(tmp_path, args):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    (tmp_path / "lib.so").write_bytes(OLDER)
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {"PATH": str(empty), "TVMTUNE_LINKER": ""}
    done = tvmtune(*args, "--network", "tiny.onnx", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert complaint(done.stderr).startswith("no linker found")
    assert (tmp_path / "lib.so").read_bytes() == OLDER


@pytest.mark.slow
def test_a_full_disk_ends_tuning_and_the_log_stays_intact(tmp_path, plan):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    log_of(plan, tmp_path / "log.json")
    before = contents(tmp_path)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    done = tvmtune(
        "tune",
        *BUDGET,
        "--log",
        "log.json",
        "--network",
        "tiny.onnx",
        cwd=tmp_path,
        env=NO_BYTECODE,
        preexec_fn=fill,
    )
    assert done.returncode == 1, done.stderr
    assert complaint(done.stderr)
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    assert after["log.json"].startswith(before["log.json"])
    assert len(api.read_log(tmp_path / "log.json").trials) == 1


@pytest.mark.slow
@pytest.mark.parametrize("size", ["8k", "64k"], ids=["at once", "while linking"])
def test_a_full_disk_ends_compilation_and_keeps_the_older_library(tmp_path, size):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    disk = tmp_path / "disk"
    with mounted(disk, f"size={size}"):
        (disk / "lib.so").write_bytes(OLDER)
        done = tvmtune("compile", "-o", "disk/lib.so", "--network", "tiny.onnx", cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        assert "disk/lib.so: " in complaint(done.stderr)
        assert "No space left" in complaint(done.stderr)
        assert contents(disk) == {"lib.so": OLDER}
