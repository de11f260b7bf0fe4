"""The mali and opencl targets, here and on boards, and invalid ones."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
from pathlib import Path
from typing import Any

import onnx
import pytest
import tvm

from cli.commands import complaint, tvmtune
from models import tiny_cnn
from tvmtune import api, host, networks
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library import elf, metadata
from tvmtune.library.export import build
from tvmtune.machine import known_boards
from tvmtune_mali.devices import check
from tvmtune_mali.target import ATTRIBUTES

WITH_GPU = sorted(name for name, board in known_boards.BOARDS.items() if board.gpu)
DOCS = Path(__file__).parents[2].joinpath("docs", "mali.md").read_text()
CROSS = "aarch64-linux-gnu-g++"


def make(backend: str = "mali", **attrs: Any) -> Any:
    return host.backend(backend).make_target(attrs, None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(tiny_cnn(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("name", WITH_GPU)
def test_a_board_is_known_by_its_name(name):
    device = make(board=name)
    target = tvm.target.Target(device.target)
    assert list(target.keys) == ["mali", "opencl", "gpu"]
    assert device.mtriple == known_boards.BOARDS[name].mtriple
    assert str(target.host.attrs["mtriple"]) == device.mtriple
    assert device.runtime == "opencl"
    assert known_boards.BOARDS[name].gpu in device.model
    assert device.threads == known_boards.BOARDS[name].cores


@pytest.mark.parametrize("name", WITH_GPU)
def test_each_board_is_documented_with_its_gpu(name):
    board = known_boards.BOARDS[name]
    assert f"| `{name}` | {board.gpu} | {board.gpu_cores} |" in DOCS


@pytest.mark.parametrize("word", [*ATTRIBUTES, *make(board="rk3399").params])
def test_each_attribute_and_parameter_is_documented(word):
    assert re.search(rf"`{word}(=.*)?`", DOCS)


def test_the_docs_agree_on_the_packages_of_a_board():
    farm = Path(__file__).parents[2].joinpath("docs", "farm.md").read_text()
    (line,) = re.findall(r"pip install (apache-tvm==.*)", DOCS)
    assert line in farm


def test_the_rk3399_has_a_mali_t860_with_four_cores():
    """All parameters that TVM's auto_scheduler tutorial sets for it."""
    device = make(board="rk3399")
    assert device.model.startswith("Mali-T860 ")
    params = host.backend("mali").hardware_params(device)
    assert params == {
        "num_cores": 4,
        "vector_unit_bytes": 16,
        "cache_line_bytes": 64,
        "max_shared_memory_per_block": 32768,
        "max_local_memory_per_block": 2**31 - 1,
        "max_threads_per_block": 256,
        "max_vthread_extent": 1,
        "warp_size": 1,
        "memory_bytes": 0,
        "extensions": [],
        "driver": "",
        "device_type": "gpu",
    }


def test_opencl_targets_lack_only_the_mali_key():
    target = tvm.target.Target(make("opencl", board="rk3399").target)
    assert list(target.keys) == ["opencl", "gpu"]


@pytest.mark.parametrize(
    ("attrs", "named"),
    [
        ({"boardd": "rk3399"}, "'boardd' is not known. Did you mean board"),
        ({"board": "rk3398"}, "board 'rk3398' is not known. Did you mean rk3399"),
        ({"board": "pynq-z1"}, "'pynq-z1' has no GPU that runs OpenCL"),
        ({"board": "rk3399", "threads": "two"}, "threads=two is not a number"),
        (
            {"board": "rk3399", "max_threads_per_block": 0},
            "max_threads_per_block must be at least 1",
        ),
        ({"board": "rk3399", "mcpu": "z80"}, "no processor 'z80' for aarch64-linux-gnu"),
    ],
)
def test_invalid_attributes_are_named(attrs, named):
    with pytest.raises(UsageError, match=named):
        make(**attrs)


def test_a_hardware_parameter_changes_the_target(model):
    params = {"max_threads_per_block": 64}
    plan = api.plan(
        networks.load(str(model)), "mali", attrs={"board": "rk3399"}, params=params, layout="NCHW"
    )
    assert plan.device.target["max_threads_per_block"] == 64
    assert plan.device.params["max_threads_per_block"] == 64
    assert plan.device.target["max_num_threads"] == 64


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"max_threads": 64}, "'max_threads' is not known"),
        ({"max_threads_per_block": 0}, "max_threads_per_block must be at least 1"),
        ({"max_threads_per_block": "many"}, "max_threads_per_block=many is not a number"),
    ],
)
def test_invalid_parameters_are_rejected(model, params, named):
    network = networks.load(str(model))
    with pytest.raises(UsageError, match=named):
        api.plan(network, "mali", attrs={"board": "rk3399"}, params=params)


def test_a_board_is_the_same_device_online_and_offline(monkeypatch):
    """So that its logs can be compiled when it is offline."""
    device = {"name": "Mali-T860", "version": "OpenCL 1.2 v1.r14p0", "compute_units": 4}
    device |= {"work_group": 256, "local_memory_bytes": 32768, "memory_bytes": 1 << 31}
    device |= {"extensions": "cl_khr_fp16", "kind": "gpu"}
    gpus = [{"kind": "opencl", "index": 0, "details": device}]
    description = {"machine": "aarch64", "cpus": 6, "gpus": gpus, "versions": {}}
    monkeypatch.setattr("tvmtune.remote.client.boards.ask", lambda remote: description)
    online = host.backend("mali").make_target({}, "rk3399")
    monkeypatch.setattr("tvmtune.remote.client.boards.ask", lambda remote: None)  # TVM's own server
    offline = host.backend("mali").make_target({}, "rk3399")
    assert online.identity() == offline.identity()
    assert online.params["extensions"] == ["cl_khr_fp16"]
    # TVM's own OpenCL runtime on the board reports less.
    row = {"kind": "opencl", "index": 0, "device_name": "Mali-T860 MP4", "compute_version": "1.2"}
    row |= {"max_threads_per_block": 256, "max_shared_memory_per_block": 32768}
    monkeypatch.setattr(
        "tvmtune.remote.client.boards.ask", lambda remote: description | {"gpus": [row]}
    )
    assert host.backend("mali").make_target({}, "rk3399").identity() == online.identity()


def test_an_unreachable_board_gets_the_parameters_of_its_name_with_a_warning():
    with pytest.warns(UserWarning, match="cannot read the board's parameters: no tracker"):
        device = host.backend("mali").make_target({}, "rk3399@127.0.0.1:1")
    assert device.model.startswith("Mali-T860 ")
    with pytest.raises(TvmtuneError, match="no tracker answers"):
        host.backend("mali").make_target({}, "unheard-of@127.0.0.1:1")


@pytest.mark.slow
def test_code_for_another_machine_is_not_run_here(tmp_path, model, cache):
    """Even if the CPU is of the same kind."""
    words = ["--target", "opencl", "--target-attr", "mtriple=x86_64-linux-gnu", model]
    env = {"XDG_CACHE_HOME": str(cache), "TVMTUNE_OPENCL_LIBRARY": "/nonexistent/libOpenCL.so"}
    done = tvmtune("compile", *words, "-o", "lib.so", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    done = tvmtune("tune", *words, "--trials", 8, "--no-compile", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "name its board with --remote KEY" in complaint(done.stderr)


def test_an_old_device_is_rejected():
    device = {"name": "Old", "version": "OpenCL 1.1 v1.r4p0"}
    with pytest.raises(TvmtuneError, match="Old has OpenCL 1.1, and 1.2 is needed"):
        check({"problem": "", "devices": [device]})
    device["version"] = "OpenCL 1.2 v1.r14p0"
    assert check({"problem": "", "devices": [device]}) == device


@pytest.mark.slow
def test_half_precision_needs_a_device_that_supports_it(model, pocl, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(pocl))
    network = networks.load(str(model), dtype="float16")
    with pytest.raises(
        TvmtuneError, match="cannot compute in float16 .cl_khr_fp16., which .* does"
    ):
        api.plan(network, "opencl")
    plan = api.plan(network, "opencl", attrs={"board": "rk3399"})
    lowered = plan.backend.lower(plan.prepared, {}, plan.device)
    text = _source(build(lowered, plan.device).mod)
    assert "cl_khr_fp16" in text
    assert "half" in text


def _source(module: Any) -> str:
    sources = [module.inspect_source("cl")] if module.kind == "opencl" else []
    return "\n".join([*sources, *(_source(m) for m in module.imports)])


@pytest.mark.slow
def test_this_machines_device_is_queried(pocl, tmp_path, model):
    done = tvmtune(
        *("tasks", model, "--target", "opencl", "--json"),
        cwd=tmp_path,
        env={"XDG_CACHE_HOME": str(pocl)},
    )
    assert done.returncode == 0, done.stderr
    device = json.loads(done.stdout)["device"]
    assert device["params"]["device_type"] == "cpu"
    assert "cl_khr_fp64" in device["params"]["extensions"]
    assert device["params"]["num_cores"] >= 1
    # PoCL reports 4096 threads and more than a megabyte.
    assert device["target"]["max_threads_per_block"] == 256
    assert device["target"]["max_shared_memory_per_block"] == 32768
    done = tvmtune(
        *("tasks", model, "--target", "opencl"),
        *("--hardware-param", "max_threads_per_block=1000000"),
        cwd=tmp_path,
        env={"XDG_CACHE_HOME": str(pocl)},
    )
    assert done.returncode == 2
    assert "max_threads_per_block=1000000: " in complaint(done.stderr)


@pytest.mark.slow
def test_a_buffer_beyond_the_devices_limit_is_reported_with_both_sizes(pocl, tmp_path):
    # PoCL then has a gigabyte, at most a quarter of it in one buffer.
    operator = Path(__file__).parents[2] / "examples" / "rgb2yuv.py"
    done = tvmtune(
        *("compile", "--target", "opencl", "--network", operator, "-o", "lib.so"),
        *("--arg", "w=8192", "--arg", "h=3072"),
        cwd=tmp_path,
        env={"XDG_CACHE_HOME": str(pocl), "POCL_MEMORY_LIMIT": "1"},
    )
    assert done.returncode == 1
    message = complaint(done.stderr)
    assert message.startswith("out of memory: no buffer of 301989888 bytes on opencl:0")
    assert "it allows 268435456 in one buffer" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_without_a_driver_the_message_lists_both_remedies(cache, tmp_path, model):
    env = {"XDG_CACHE_HOME": str(cache), "TVMTUNE_OPENCL_LIBRARY": "/nonexistent/libOpenCL.so"}
    done = tvmtune("tune", model, "--target", "mali", "--trials", 8, cwd=tmp_path, env=env)
    assert done.returncode == 1
    message = complaint(done.stderr)
    assert "no OpenCL device: /nonexistent/libOpenCL.so" in message
    assert "Install the driver" in message
    assert "--remote KEY" in message
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.slow
def test_without_a_compiler_the_remedy_is_named(tmp_path, model):
    env = {"XDG_CACHE_HOME": str(tmp_path / "empty"), "CXX": "nonexistent-c++"}
    done = tvmtune("compile", model, "--target", "opencl", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "CXX names 'nonexistent-c++'" in complaint(done.stderr)
    assert "--remote KEY" in complaint(done.stderr)
    done = tvmtune("tasks", model, "--target", "opencl", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "warning: assuming an OpenCL GPU: CXX names 'nonexistent-c++'" in done.stderr


@pytest.mark.slow
def test_a_library_is_rejected_without_opencl(pocl, tmp_path, model):
    env = {"XDG_CACHE_HOME": str(pocl)}
    done = tvmtune("compile", model, "--target", "opencl", "-o", "lib.so", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    env["TVMTUNE_OPENCL_LIBRARY"] = "/nonexistent/libOpenCL.so"
    for words in (["bench", "lib.so"], ["run", "lib.so"]):
        done = tvmtune(*words, cwd=tmp_path, env=env)
        assert done.returncode == 1
        assert "no OpenCL device: /nonexistent/libOpenCL.so" in complaint(done.stderr)
    board = {"machine": elf.host_machine(), "features": [], "gpus": []}
    described = metadata.read(tmp_path / "lib.so")
    with pytest.raises(TvmtuneError, match="tvmtune serve --target opencl"):
        metadata.check_runnable(tmp_path / "lib.so", described, board)


@pytest.fixture
def ndk(tmp_path: Path) -> Path:
    """A stand-in for the NDK's compiler that notes how it was called."""
    path = tmp_path / "aarch64-linux-android24-clang++"
    path.write_text(
        f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done > {shlex.quote(str(path))}.txt\n'
        f'exec {CROSS} -nostdlib "$@"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"{CROSS} is not installed")
def test_the_ndk_links_android_libraries(ndk, tmp_path, model, monkeypatch):
    attrs = {"board": "android"}
    plan = api.plan(networks.load(str(model)), "mali", attrs=attrs)
    monkeypatch.setenv("TVM_NDK_CC", str(ndk))
    monkeypatch.delenv("TVMTUNE_LINKER", raising=False)
    api.compile(plan, tmp_path / "lib.so")
    called = Path(f"{ndk}.txt").read_text().splitlines()
    assert called[:2] == ["-shared", "-o"]
    assert called[2].endswith(".so")
    assert all(word.endswith(".o") for word in called[3:])
    assert metadata.elf_machine(tmp_path / "lib.so") == "aarch64"
    assert plan.backend.make_builder(plan.device).options["linker"] == [str(ndk)]
    # It may name a cross compiler for Linux, as in the tutorial; the NDK links only for Android.
    linux = make(board="rk3399")
    assert plan.backend.make_builder(linux).options["linker"] != [str(ndk)]
    monkeypatch.setenv("TVM_NDK_CC", CROSS)
    assert plan.backend.make_builder(linux).options["linker"] == [CROSS]


@pytest.mark.slow
def test_android_without_the_ndk_is_an_error(tmp_path, model):
    env = dict.fromkeys(("TVM_NDK_CC", "TVMTUNE_LINKER"), "")
    words = ["compile", model, "--target", "mali", "--target-attr", "board=android"]
    done = tvmtune(*words, "-o", "lib.so", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "name it in TVM_NDK_CC" in complaint(done.stderr)
    done = tvmtune(*words, "-o", "lib.so", cwd=tmp_path, env=env | {"TVM_NDK_CC": "no-such-clang"})
    assert done.returncode == 1
    assert "TVM_NDK_CC names 'no-such-clang', which cannot be run" in complaint(done.stderr)
    assert not (tmp_path / "lib.so").exists()
