"""CPU counts, from the kernel's description of the machine, and threads set for children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvmtune.errors import UsageError
from tvmtune.machine import cpu_count


@pytest.fixture
def machine(tmp_path):
    """Makes a fake root folder: ``machine(siblings, files)``."""

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
def test_hyper_threads_of_a_core_count_once(machine, allowed, physical):
    cpus = cpu_count.count_cpus(allowed, machine(HYPER_THREADED))
    assert (cpus.allowed, cpus.physical, cpus.usable) == (len(allowed), physical, physical)
    assert cpus.quota is None


def test_each_cpu_counts_as_a_core_without_topology(machine):
    assert cpu_count.count_cpus({0, 1, 2}, machine({})).usable == 3


@pytest.mark.parametrize(
    ("files", "quota", "usable"),
    [
        # version 2: inside a container, or with the limit in a parent group
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
        # version 1, where the path may be the host's and meaningless in the container
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
    cpus = cpu_count.count_cpus(set(range(8)), machine(HYPER_THREADED, files))
    assert (cpus.quota, cpus.usable) == (quota, usable)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_limits_the_count_and_tvms_threads():
    """TVM would bind its first thread to CPU 0 even if the process may not use it."""
    cpu = max(os.sched_getaffinity(0))
    code = f"""
import os
os.sched_setaffinity(0, {{{cpu}}})
from tvmtune.machine import cpu_count
print(cpu_count.usable_cpus())
seen = cpu_count.count_cpus().seen
os.environ.pop("TVM_BIND_THREADS", None)
cpu_count.set_threads(1)
print(os.environ.get("TVM_BIND_THREADS") == "0" or seen == 1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True"], done.stderr


def test_children_inherit_the_number_of_threads(monkeypatch):
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("TVM_BIND_THREADS", "1")
    cpu_count.set_threads(3)
    code = "import os; print(os.environ['TVM_NUM_THREADS'], os.environ['OMP_NUM_THREADS'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["3", "3"]
    assert os.environ["TVM_BIND_THREADS"] == "1"  # the user's choice is kept
    with pytest.raises(UsageError, match="at least 1, not 0"):
        cpu_count.set_threads(0)
