"""What --target mali and --target opencl are, here and on boards, and what they refuse."""

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
from tvmtune import api, boards, host, networks
from tvmtune.deploy import elf, metadata
from tvmtune.deploy.export import build
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune_mali.devices import check
from tvmtune_mali.target import ATTRIBUTES

WITH_GPU = sorted(name for name, board in boards.BOARDS.items() if board.gpu)
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
    assert device.mtriple == boards.BOARDS[name].mtriple
    assert str(target.host.attrs["mtriple"]) == device.mtriple
    assert device.runtime == "opencl"
    assert boards.BOARDS[name].gpu in device.model
    assert device.threads == boards.BOARDS[name].cores


@pytest.mark.parametrize("name", WITH_GPU)
def test_each_board_stands_in_the_docs_with_its_gpu(name):
    board = boards.BOARDS[name]
    assert f"| `{name}` | {board.gpu} | {board.gpu_cores} |" in DOCS


@pytest.mark.parametrize("word", [*ATTRIBUTES, *make(board="rk3399").params])
def test_each_attribute_and_parameter_stands_in_the_docs(word):
    assert re.search(rf"`{word}(=.*)?`", DOCS)


def test_a_board_needs_what_the_emulated_one_has():
    farm = Path(__file__).parents[2].joinpath("docs", "farm.md").read_text()
    (line,) = re.findall(r"pip install (apache-tvm==.*)", DOCS)
    assert line in farm


def test_the_rk3399_is_a_mali_t860_of_four_cores():
    """All the parameters that the tutorial of TVM's auto_scheduler sets for it."""
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


def test_opencl_is_the_same_backend_without_the_word_mali():
    target = tvm.target.Target(make("opencl", board="rk3399").target)
    assert list(target.keys) == ["opencl", "gpu"]


@pytest.mark.parametrize(
    ("attrs", "named"),
    [
        ({"boardd": "rk3399"}, "'boardd' is not known. Did you mean board"),
        ({"board": "rk3398"}, "no board 'rk3398' is known. Did you mean rk3399"),
        ({"board": "pynq-z1"}, "'pynq-z1' has no GPU that runs OpenCL"),
        ({"board": "rk3399", "threads": "two"}, "threads=two is not a number"),
        ({"board": "rk3399", "max_threads_per_block": 0}, "max_threads_per_block=0: at least 1"),
        ({"board": "rk3399", "mcpu": "z80"}, "no processor 'z80' for aarch64-linux-gnu"),
    ],
)
def test_what_is_not_known_is_named(attrs, named):
    with pytest.raises(UsageError, match=named):
        make(**attrs)


def test_a_parameter_changes_the_target_too(model):
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
        ({"max_threads_per_block": 0}, "max_threads_per_block=0: at least 1"),
        ({"max_threads_per_block": "many"}, "max_threads_per_block=many is not a number"),
    ],
)
def test_an_impossible_parameter_is_refused(model, params, named):
    network = networks.load(str(model))
    with pytest.raises(UsageError, match=named):
        api.plan(network, "mali", attrs={"board": "rk3399"}, params=params)


def test_a_board_is_the_same_device_whether_it_was_asked_or_not(monkeypatch):
    """So that a log of it can be compiled when it is gone."""
    device = {"name": "Mali-T860", "version": "OpenCL 1.2 v1.r14p0", "compute_units": 4}
    device |= {"work_group": 256, "local_memory_bytes": 32768, "memory_bytes": 1 << 31}
    device |= {"extensions": "cl_khr_fp16", "kind": "gpu"}
    gpus = [{"kind": "opencl", "index": 0, "details": device}]
    told = {"machine": "aarch64", "cpus": 6, "gpus": gpus, "versions": {}}
    monkeypatch.setattr("tvmtune.farm.devices.ask", lambda remote: told)
    asked = host.backend("mali").make_target({}, "rk3399")
    monkeypatch.setattr("tvmtune.farm.devices.ask", lambda remote: None)  # TVM's own server
    unasked = host.backend("mali").make_target({}, "rk3399")
    assert asked.identity() == unasked.identity()
    assert asked.params["extensions"] == ["cl_khr_fp16"]
    # TVM's own OpenCL runtime on the board tells less.
    row = {"kind": "opencl", "index": 0, "device_name": "Mali-T860 MP4", "compute_version": "1.2"}
    row |= {"max_threads_per_block": 256, "max_shared_memory_per_block": 32768}
    monkeypatch.setattr("tvmtune.farm.devices.ask", lambda remote: told | {"gpus": [row]})
    assert host.backend("mali").make_target({}, "rk3399").identity() == asked.identity()


def test_what_cannot_be_asked_is_taken_from_the_name_with_a_warning():
    with pytest.warns(UserWarning, match="the board's parameters are not read: no tracker"):
        device = host.backend("mali").make_target({}, "rk3399@127.0.0.1:1")
    assert device.model.startswith("Mali-T860 ")
    with pytest.raises(TvmtuneError, match="no tracker answers"):
        host.backend("mali").make_target({}, "unheard-of@127.0.0.1:1")


@pytest.mark.slow
def test_what_is_compiled_for_elsewhere_is_not_run_here(tmp_path, model, cache):
    """Not even where the CPU is of the same kind."""
    words = ["--target", "opencl", "--target-attr", "mtriple=x86_64-linux-gnu", model]
    env = {"XDG_CACHE_HOME": str(cache), "TVMTUNE_OPENCL_LIBRARY": "/nonexistent/libOpenCL.so"}
    done = tvmtune("compile", *words, "-o", "lib.so", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    done = tvmtune("tune", *words, "--trials", 8, "--no-compile", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "name its board with --remote KEY" in complaint(done.stderr)


def test_an_old_device_is_refused():
    device = {"name": "Old", "version": "OpenCL 1.1 v1.r4p0"}
    with pytest.raises(TvmtuneError, match="Old has OpenCL 1.1, and 1.2 is needed"):
        check({"problem": "", "devices": [device]})
    device["version"] = "OpenCL 1.2 v1.r14p0"
    assert check({"problem": "", "devices": [device]}) == device


def test_half_precision_needs_a_device_that_has_it(model, pocl, monkeypatch):
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
    found = [module.inspect_source("cl")] if module.kind == "opencl" else []
    return "\n".join([*found, *(_source(m) for m in module.imports)])


@pytest.mark.slow
def test_this_machines_device_is_asked(pocl, tmp_path, model):
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
    # PoCL has 4096 and more than a megabyte.
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
def test_a_device_whose_memory_is_too_small_is_told_its_sizes(pocl, tmp_path):
    # PoCL has a gigabyte then, and at most a quarter of that in one piece.
    operator = Path(__file__).parents[2] / "examples" / "rgb2yuv.py"
    done = tvmtune(
        *("compile", "--target", "opencl", "--network", operator, "-o", "lib.so"),
        *("--arg", "w=8192", "--arg", "h=3072"),
        cwd=tmp_path,
        env={"XDG_CACHE_HOME": str(pocl), "POCL_MEMORY_LIMIT": "1"},
    )
    assert done.returncode == 1
    said = complaint(done.stderr)
    assert said.startswith("the memory is full: no buffer of 301989888 bytes on opencl:0")
    assert "it allows 268435456 in one buffer" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_without_a_driver_both_remedies_are_named_at_once(cache, tmp_path, model):
    env = {"XDG_CACHE_HOME": str(cache), "TVMTUNE_OPENCL_LIBRARY": "/nonexistent/libOpenCL.so"}
    done = tvmtune("tune", model, "--target", "mali", "--trials", 8, cwd=tmp_path, env=env)
    assert done.returncode == 1
    said = complaint(done.stderr)
    assert "no OpenCL device: /nonexistent/libOpenCL.so" in said
    assert "Install the driver" in said
    assert "--remote KEY" in said
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_without_a_compiler_the_remedy_is_named(tmp_path, model):
    env = {"XDG_CACHE_HOME": str(tmp_path / "empty"), "CXX": "nonexistent-c++"}
    done = tvmtune("tasks", model, "--target", "opencl", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "CXX names 'nonexistent-c++'" in complaint(done.stderr)
    assert "--remote KEY" in complaint(done.stderr)


@pytest.mark.slow
def test_a_library_is_refused_where_there_is_no_opencl(pocl, tmp_path, model):
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


@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"{CROSS} is not installed")
def test_for_android_the_ndk_links(ndk, tmp_path, model, monkeypatch):
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
    # It may name a cross compiler for Linux, as in the tutorial; the NDK links for Android alone.
    linux = make(board="rk3399")
    assert plan.backend.make_builder(linux).options["linker"] != [str(ndk)]
    monkeypatch.setenv("TVM_NDK_CC", CROSS)
    assert plan.backend.make_builder(linux).options["linker"] == [CROSS]


@pytest.mark.slow
def test_for_android_the_ndk_is_asked_for(tmp_path, model):
    env = dict.fromkeys(("TVM_NDK_CC", "TVMTUNE_LINKER"), "")
    words = ["compile", model, "--target", "mali", "--target-attr", "board=android"]
    done = tvmtune(*words, "-o", "lib.so", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "name it in TVM_NDK_CC" in complaint(done.stderr)
    done = tvmtune(*words, "-o", "lib.so", cwd=tmp_path, env=env | {"TVM_NDK_CC": "no-such-clang"})
    assert done.returncode == 1
    assert "TVM_NDK_CC names 'no-such-clang', which cannot be run" in complaint(done.stderr)
    assert not (tmp_path / "lib.so").exists()
