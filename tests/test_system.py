"""Counting CPUs as the kernel describes them; versions; the linker."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tvmtune import system
from tvmtune.errors import TvmtuneError, UsageError

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture
def machine(tmp_path):
    """A made-up root folder: ``machine(siblings, files)``."""

    def make(siblings: dict[int, str], files: dict[str, str] | None = None) -> Path:
        for cpu, text in siblings.items():
            folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{text}\n")
        for name, text in (files or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return make


HYPER_THREADED = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}


@pytest.mark.parametrize(
    ("allowed", "physical"),
    [(set(range(8)), 4), ({0, 4}, 1), ({0, 1, 5}, 2), ({3}, 1), ({0, 9}, 2)],
)
def test_siblings_count_once(machine, allowed, physical):
    cpus = system.count_cpus(allowed, machine(HYPER_THREADED))
    assert (cpus.allowed, cpus.physical, cpus.usable) == (len(allowed), physical, physical)
    assert cpus.quota is None


def test_a_machine_that_tells_nothing_has_a_core_per_cpu(machine):
    assert system.count_cpus({0, 1, 2}, machine({})).usable == 3


@pytest.mark.parametrize(
    ("files", "quota", "usable"),
    [
        # version 2, in a container of its own and with the limit further up
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2.5, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None, 4),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5, 1),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            },
            3.0,
            3,
        ),
        # version 1, where the path may be the host's and mean nothing in here
        (
            {
                "proc/self/cgroup": "5:cpuset:/x\n4:cpu,cpuacct:/docker/42",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            2.0,
            2,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/job",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            None,
            4,
        ),
        ({"proc/self/cgroup": "nonsense"}, None, 4),
    ],
)
def test_quotas_are_rounded_down_to_whole_cpus(machine, files, quota, usable):
    cpus = system.count_cpus(set(range(8)), machine(HYPER_THREADED, files))
    assert (cpus.quota, cpus.usable) == (quota, usable)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_is_heeded_and_tvm_kept_within_it():
    """TVM binds its first thread to CPU 0 even where the process may only use another one."""
    cpu = max(os.sched_getaffinity(0))
    code = f"""
import os
os.sched_setaffinity(0, {{{cpu}}})
from tvmtune import system
print(system.usable_cpus())
seen = system.count_cpus().seen
os.environ.pop("TVM_BIND_THREADS", None)
system.set_threads(1)
print(os.environ.get("TVM_BIND_THREADS") == "0" or seen == 1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True"], done.stderr


def test_threads_are_set_for_children_too(monkeypatch):
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("TVM_BIND_THREADS", "1")
    system.set_threads(3)
    code = "import os; print(os.environ['TVM_NUM_THREADS'], os.environ['OMP_NUM_THREADS'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["3", "3"]
    assert os.environ["TVM_BIND_THREADS"] == "1"  # the user's own choice stays
    with pytest.raises(UsageError, match="at least 1, not 0"):
        system.set_threads(0)


def test_fingerprint_is_plain_and_hides_the_hosts_name():
    import json
    import platform

    found = system.fingerprint()
    assert json.loads(json.dumps(found)) == found
    assert found["cpu"] == system.cpu_model() != ""
    assert found["cpus"]["usable"] == system.usable_cpus() >= 1
    assert found["memory_bytes"] > 2**28
    assert platform.node() not in json.dumps(found)


def test_versions_come_without_imports():
    code = (
        "import sys; from tvmtune import system; v = system.versions(); system.check_pins(); "
        "print(sorted(v)); print([m for m in ('tvm', 'numpy', 'xgboost') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "['apache-tvm', 'apache-tvm-ffi', 'numpy', 'tvmtune', 'xgboost']",
        "[]",
    ], done.stderr
    assert None not in system.versions().values()


def test_the_pins_are_those_of_the_project():
    text = (REPO / "pyproject.toml").read_text()
    assert dict(re.findall(r'"(apache-tvm[a-z-]*)==([^"]+)"', text)) == system.PINS


def test_wrong_pins_are_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(system.PINS, "apache-tvm-ffi", "9.9")
    monkeypatch.setitem(system.PINS, "no-such-package", "1.0")
    with pytest.raises(TvmtuneError) as caught:
        system.check_pins()
    message = str(caught.value)
    assert "apache-tvm-ffi is 0.1.14.post1, not 9.9" in message
    assert "no-such-package is not installed" in message
    assert "segfault in TuneContext" in message
    assert "pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==9.9" in message


def fake_tool(folder: Path, name: str) -> Path:
    tool = folder / name
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return tool


def test_the_bare_linker_comes_before_the_compiler(tmp_path, monkeypatch):
    monkeypatch.delenv("TVMTUNE_LINKER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(TvmtuneError, match="no linker found.*apt-get install binutils"):
        system.find_linker()
    for name in ("clang", "gcc", "ld", "ld.lld"):
        tool = fake_tool(tmp_path, name)
        assert system.find_linker() == [str(tool)]


def test_a_linker_may_be_named(tmp_path, monkeypatch):
    tool = fake_tool(tmp_path, "my ld")
    monkeypatch.setenv("TVMTUNE_LINKER", f"'{tool}' -z now")
    assert system.find_linker() == [str(tool), "-z", "now"]
    monkeypatch.setenv("TVMTUNE_LINKER", "not-there-at-all -x")
    with pytest.raises(TvmtuneError, match="TVMTUNE_LINKER names 'not-there-at-all'"):
        system.find_linker()


@pytest.mark.slow
def test_the_linker_found_makes_a_library_of_tvms_objects(tmp_path):
    """In a child: the thread pool that TVM starts must not stay in the tests' process."""
    code = """
import subprocess, sys
from tvmtune import system
import numpy as np
import tvm
from tvm import te

a = te.placeholder((8, 8), "float32", "a")
b = te.compute((8, 8), lambda i, j: te.exp(a[i, j]) + te.tanh(a[i, j]), "b")
mod = tvm.IRModule({"main": te.create_prim_func([a, b])})

def link(output, objects, **_):
    subprocess.run([*system.find_linker(), "-shared", "-o", output, *objects], check=True)

tvm.compile(mod, target="llvm").export_library(sys.argv[1], fcompile=link)
x = np.linspace(-1, 1, 64, dtype="float32").reshape(8, 8)
y = tvm.runtime.tensor(np.zeros((8, 8), "float32"))
tvm.runtime.load_module(sys.argv[1])["main"](tvm.runtime.tensor(x), y)
np.testing.assert_allclose(y.numpy(), np.exp(x) + np.tanh(x), rtol=1e-5)
"""
    path = tmp_path / "lib.so"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert ctypes.sizeof(ctypes.c_void_p) * 8 == {1: 32, 2: 64}[path.read_bytes()[4]]
