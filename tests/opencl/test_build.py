"""Compiling the OpenCL add-on: once per user, with clear errors, and leaving no partial file."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tvmtune_opencl
from disks import NO_BYTECODE
from tvmtune.errors import TvmtuneError
from tvmtune.machine import package_versions
from tvmtune_opencl import compiler

BUILD = "import tvmtune_opencl; tvmtune_opencl.build()"
REGISTERED = (
    "import sys, tvm, tvm_ffi\n"
    "print(tvm_ffi.get_global_func('device_api.opencl', allow_missing=True) is not None)"
)


@pytest.fixture
def empty(tmp_path, monkeypatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch):
    """Set $CXX to a shell script with this body; ``$out`` is its output file."""

    def make(body: str) -> Path:
        tool = tmp_path / "compiler"
        tool.write_text(f'#!/bin/sh\nfor out in "$@"; do :; done\n{body}\n')
        tool.chmod(0o755)
        monkeypatch.setenv("CXX", str(tool))
        return tool

    return make


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True
    )


def files(folder: Path) -> list[str]:
    """Names of all files in a folder."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_without_a_compiler_the_message_names_the_remedy(empty, monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TvmtuneError, match=r"no C\+\+ compiler .*apt-get install g\+\+"):
        tvmtune_opencl.build()
    assert not empty.exists()


def test_cxx_selects_the_compiler(empty, fake_compiler):
    tool = fake_compiler('printf built >"$out"')
    assert compiler.find_compiler() == [str(tool)]
    assert tvmtune_opencl.build().read_text() == "built"


def test_a_compiler_that_cannot_be_run_is_named(empty, monkeypatch):
    monkeypatch.setenv("CXX", "nowhere-g++ -m64")
    with pytest.raises(TvmtuneError, match=r"^CXX names 'nowhere-g\+\+', which cannot be run$"):
        tvmtune_opencl.build()


def test_another_version_of_tvm_is_rejected(empty, monkeypatch):
    monkeypatch.setitem(package_versions.PINS, "apache-tvm", "0.99")
    with pytest.raises(TvmtuneError, match="apache-tvm is .*, not 0.99"):
        tvmtune_opencl.build()
    assert not empty.exists()


def test_the_first_compiler_error_is_reported(empty, fake_compiler):
    fake_compiler(
        'printf half >"$out"; echo "a note\nx.cc:1: error: no such thing\nmore" >&2; exit 1'
    )
    with pytest.raises(TvmtuneError, match=r"compiler: x.cc:1: error: no such thing$"):
        tvmtune_opencl.build()
    assert files(empty) == [".lock"]
    assert tvmtune_opencl.built() is None


def test_an_unwritable_cache_is_reported(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(TvmtuneError, match="cannot write .*XDG_CACHE_HOME names another"):
        tvmtune_opencl.build()


def test_a_relative_cache_directory_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tvmtune_opencl.place().is_relative_to(tmp_path / ".cache")


def test_the_path_depends_on_versions_sources_and_machine(empty, monkeypatch, tmp_path):
    places = {tvmtune_opencl.place()}
    monkeypatch.setattr(tvmtune_opencl.metadata, "version", lambda name: "9")
    places.add(tvmtune_opencl.place())
    monkeypatch.setattr(tvmtune_opencl.platform, "machine", lambda: "riscv64")
    places.add(tvmtune_opencl.place())
    (tmp_path / "runtime.cc").write_text("int x;")
    monkeypatch.setattr(tvmtune_opencl, "SOURCES", tmp_path)
    places.add(tvmtune_opencl.place())
    assert len(places) == 4


def test_importing_tvm_neither_builds_nor_raises(empty, monkeypatch):
    before = list(tvmtune_opencl._loaded)
    tvmtune_opencl.autoload()
    assert not empty.exists()
    tvmtune_opencl.place().parent.mkdir(parents=True)
    tvmtune_opencl.place().write_text("this is no library")
    tvmtune_opencl.autoload()
    monkeypatch.setattr(tvmtune_opencl, "place", lambda: 1 / 0)
    tvmtune_opencl.autoload()
    assert tvmtune_opencl._loaded == before


def test_concurrent_processes_compile_it_once(empty, fake_compiler, tmp_path):
    fake_compiler(f'echo run >>{tmp_path}/runs; sleep 1; cp /bin/sh "$out"')
    both = [subprocess.Popen([sys.executable, "-c", BUILD]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert (tmp_path / "runs").read_text() == "run\n"
    assert files(empty) == [".lock", tvmtune_opencl.NAME]


def test_a_build_succeeds_after_one_that_was_killed(empty, fake_compiler, tmp_path):
    fake_compiler(f'printf half >"$out"; touch {tmp_path}/half; exec sleep 60')
    process = subprocess.Popen([sys.executable, "-c", BUILD], start_new_session=True)
    while not (tmp_path / "half").exists():
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert tvmtune_opencl.built() is None
    assert len(files(empty)) == 2
    fake_compiler('printf built >"$out"')
    assert tvmtune_opencl.build().read_text() == "built"
    assert files(empty) == [".lock", tvmtune_opencl.NAME]


@pytest.mark.slow
def test_a_full_disk_leaves_no_partial_file(cache, empty):
    """The compiler cannot write more than 20 KB."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(
        [sys.executable, "-c", BUILD],
        env=os.environ | NO_BYTECODE,
        preexec_fn=limit,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "TvmtuneError: the OpenCL add-on cannot be compiled: " in done.stderr
    assert files(empty) == [".lock"]


@pytest.mark.slow
def test_importing_tvm_loads_it_once_it_is_built(cache, tmp_path):
    done = python(REGISTERED, XDG_CACHE_HOME=str(cache))
    assert (done.stdout, done.stderr) == ("True\n", "")
    done = python(REGISTERED, XDG_CACHE_HOME=str(tmp_path))
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.slow
def test_tvms_own_runtime_is_kept(cache):
    """Registering a name twice would abort the process."""
    code = (
        "import os, tvm_ffi\n"
        "tvm_ffi.register_global_func('device_api.opencl', lambda: None)\n" + REGISTERED + "\n"
        "import tvmtune_opencl; tvmtune_opencl.load()\n"
        "print(tvm_ffi.get_global_func('runtime.timer.opencl', allow_missing=True))"
    )
    done = python(code, XDG_CACHE_HOME=str(cache))
    assert (done.returncode, done.stdout) == (0, "True\nNone\n"), done.stderr


@pytest.mark.slow
def test_a_truncated_library_is_recompiled(cache, empty):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        whole = tvmtune_opencl.place().read_bytes()
    tvmtune_opencl.place().parent.mkdir(parents=True)
    tvmtune_opencl.place().write_bytes(whole[: len(whole) // 2])
    done = python("import tvmtune_opencl; tvmtune_opencl.load(); print(tvmtune_opencl.active())")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert len(tvmtune_opencl.place().read_bytes()) > len(whole) // 2


@pytest.mark.slow
def test_the_doctor_compiles_it_and_lists_the_devices(pocl, empty):
    def doctor(*options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tvmtune.cli", "doctor", *options],
            capture_output=True,
            text=True,
        )
        return next(line for line in done.stdout.splitlines() if "  opencl " in line)

    assert doctor().split(None, 2)[::2] == ["note", "not compiled (optional)"]
    assert doctor("--build").startswith("pass")
    assert "0: pthread" in doctor()
