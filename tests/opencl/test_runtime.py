"""TVM's OpenCL kernels on a real device (PoCL), through the compiled add-on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opencl.conftest import LIMIT, start

pytestmark = pytest.mark.slow


def test_kernels_compute_what_they_should(run, tmp_path):
    found = run("right_results", str(tmp_path))
    assert found.pop("local memory"), "the tiled product was to go through local memory"
    assert len(found) == 4
    assert max(found.values()) < 1e-6


def test_integers_and_doubles_compute_as_well_as_floats(run):
    assert run("odd_types") == dict.fromkeys(("int8", "int32", "int64", "float64"), True)


def test_kernels_take_numbers_by_value(run):
    assert run("scalar_arguments") == 0.0


def test_a_network_runs_in_tvms_virtual_machine(run):
    found = run("network")
    assert found["error"] < 1e-4
    assert min(found["times"]) > 0


def test_the_timer_tells_the_kernels_time(run):
    found = run("times")
    assert len(found["timed"]) == 5
    assert min(found["timed"]) > 0
    assert min(found["small"]) > 0
    # The clock sees the same kernels, and the gaps between them.
    assert min(found["timed"]) < 2 * found["clock"]
    assert max(found["small"]) < min(found["timed"])


def test_the_device_is_described(run):
    found = run("attributes")
    (device,) = found["described"]["devices"]
    assert found["exist"] is True
    assert found["device_name"] == device["name"] != ""
    assert found["max_threads_per_block"] == device["work_group"] >= 256
    assert found["max_shared_memory_per_block"] == device["local_memory_bytes"] > 0
    assert found["total_global_memory"] == device["memory_bytes"] > 0
    assert found["multi_processor_count"] == device["compute_units"] > 0
    assert found["max_clock_rate"] == 1000 * device["mhz"]
    assert found["l2_cache_size_bytes"] == device["cache_bytes"]
    assert found["warp_size"] == 1
    assert len(found["max_thread_dimensions"]) == 3
    assert re.fullmatch(r"\d\.\d", found["compute_version"])
    assert found["driver_version"] == device["driver"]
    assert "cl_khr_" in device["extensions"]
    assert device["local_memory"] == "global", "a CPU has no memory for groups"
    assert found["described"]["problem"] == ""


def test_a_device_that_is_not_there_is_refused(run):
    found = run("attributes")
    assert found["beyond"] is False
    assert found["beyond, used"] == ("RuntimeError: there is no opencl:7: 1 OpenCL device(s) found")


def test_each_failure_is_one_clear_line_and_the_device_works_on(run):
    found = run("bad_requests")
    assert found["nothing"] == "(0,)"
    assert re.match(
        r"MemoryError: no buffer of 4398046511104 bytes on opencl:0 .*: CL_", found["too much"]
    )
    assert "CL_INVALID_WORK_GROUP_SIZE (8192 x 1 x 1 work-items in a group" in found["large group"]
    assert "'main_kernel' does not build" in found["spoilt"]
    assert "CL_BUILD_PROGRAM_FAILURE" in found["spoilt"]
    assert "undeclared identifier 'nowhere'" in found["spoilt"]
    assert found["damaged"] == found["cut short"]
    assert "cut short or damaged" in found["damaged"]
    assert found["at last"] == "0.0"


def test_too_much_local_memory_is_told_in_bytes(run):
    assert "needs 8388608 bytes of local memory, and there are" in run("local_memory")


def test_two_processes_of_four_threads_each_get_right_results(pocl):
    both = [start(pocl, "threads_at_once", 4, 50) for _ in range(2)]
    ends = [process.communicate(timeout=LIMIT) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert [json.loads(output.splitlines()[-1]) for output, _ in ends] == [0.0, 0.0]


def test_memory_does_not_grow_with_launches_timings_tensors_or_libraries(run, tmp_path):
    found = run("growth", 2000, 40, str(tmp_path))
    # 2000 forgotten events or launches would be some 300 KB, as many forgotten tensors 500 MB, and
    # 40 forgotten kernels 40 MB.
    assert found["launch"] < 200_000
    assert found["time"] < 200_000
    assert found["allocate"] < 4_000_000
    assert found["load"] < 4_000_000


def test_a_forked_child_works_unless_its_parent_has_used_opencl(run):
    found = run("forks")
    assert found["early"] == found["own"] == found["again"] == "0.0"
    assert "before this process was forked" in found["late"]


def test_a_process_may_end_in_the_middle_of_its_kernels(run):
    assert run("unfinished") == "left"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("OCL_ICD_VENDORS", "/nonexistent", "CL_PLATFORM_NOT_FOUND_KHR"),
        (
            "TVMTUNE_OPENCL_LIBRARY",
            "/nonexistent/libmali.so",
            "/nonexistent/libmali.so: cannot open",
        ),
        ("TVMTUNE_OPENCL_LIBRARY", "libm.so.6", "there is no clGetPlatformIDs in it"),
    ],
)
def test_without_a_driver_nothing_exists_and_the_first_use_says_why(run, variable, value, said):
    found = run("devices", **{variable: value})
    assert found["exist"] is False
    assert found["names"] == []
    assert found["used"].startswith("RuntimeError: no OpenCL device: ")
    assert said in found["used"]
    assert "TVMTUNE_OPENCL_LIBRARY" in found["used"]


def test_two_devices_are_used_side_by_side(run):
    found = run("several_devices", POCL_DEVICES="pthread basic")
    assert len(found["names"]) == 2
    assert (found["first"], found["second"]) == (0.0, 0.0)
    assert found["copied"] == [list(range(8))] * 2


@pytest.mark.parametrize(
    ("wanted", "left"),
    [("1", ["pthread"]), ("BASIC", ["basic"]), ("portable", ["basic", "pthread"])],
)
def test_a_device_is_chosen_by_its_number_its_name_or_its_platform(run, wanted, left):
    found = run("devices", POCL_DEVICES="pthread basic", TVMTUNE_OPENCL_DEVICE=wanted)
    assert found["exist"] is True
    assert [name.split("-")[0] for name in found["names"]] == left


def test_a_choice_that_fits_none_is_answered_with_the_devices(run):
    found = run("devices", TVMTUNE_OPENCL_DEVICE="mali")
    assert found["exist"] is False
    assert "TVMTUNE_OPENCL_DEVICE is 'mali', and the devices are 0: pthread" in found["used"]


@contextlib.contextmanager
def served(cache: Path, folder: Path) -> Iterator[int]:
    """The port of TVM's own RPC server. Its sessions' processes are in its group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen(
            f"{sys.executable} -m tvm.exec.rpc_server --host 127.0.0.1 "
            f"--port {port} --port-end {port + 1}".split(),
            env=os.environ | {"XDG_CACHE_HOME": str(cache)},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + LIMIT
        while f":{port}" not in log.read_text() and time.monotonic() < end:
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_a_board_of_tvms_own_server_runs_kernels_in_each_session(run, pocl, tmp_path):
    with served(pocl, tmp_path) as port:
        found = run("remote", port, str(tmp_path))
    assert len(found) == 2
    for session in found:
        assert session["error"] == 0.0
        assert min(session["times"]) > 0
        assert json.loads(session["described"])["devices"][0]["name"] == session["name"]
