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


def test_kernels_are_correct(run, tmp_path):
    result = run("right_results", str(tmp_path))
    assert result.pop("local memory"), "the tiled product was to go through local memory"
    assert len(result) == 4
    assert max(result.values()) < 1e-6


def test_integer_and_double_kernels_are_correct(run):
    assert run("odd_types") == dict.fromkeys(("int8", "int32", "int64", "float64"), True)


def test_kernels_take_scalar_arguments(run):
    assert run("scalar_arguments") == 0.0


def test_a_network_runs_in_tvms_virtual_machine(run):
    result = run("network")
    assert result["error"] < 1e-4
    assert min(result["times"]) > 0


def test_the_timer_measures_the_kernels(run):
    result = run("times")
    assert len(result["timed"]) == 5
    assert min(result["timed"]) > 0
    assert min(result["small"]) > 0
    # Wall-clock time includes the gaps between kernels.
    assert min(result["timed"]) < 2 * result["clock"]
    assert max(result["small"]) < min(result["timed"])


def test_device_attributes_are_reported(run):
    result = run("attributes")
    (device,) = result["described"]["devices"]
    assert result["exist"] is True
    assert result["device_name"] == device["name"] != ""
    assert result["max_threads_per_block"] == device["work_group"] >= 256
    assert result["max_shared_memory_per_block"] == device["local_memory_bytes"] > 0
    assert result["total_global_memory"] == device["memory_bytes"] > 0
    assert result["multi_processor_count"] == device["compute_units"] > 0
    assert result["max_clock_rate"] == 1000 * device["mhz"]
    assert result["l2_cache_size_bytes"] == device["cache_bytes"]
    assert result["warp_size"] == 1
    assert len(result["max_thread_dimensions"]) == 3
    assert re.fullmatch(r"\d\.\d", result["compute_version"])
    assert result["driver_version"] == device["driver"]
    assert "cl_khr_" in device["extensions"]
    assert device["local_memory"] == "global", "a CPU has no memory for groups"
    assert result["described"]["problem"] == ""


def test_a_missing_device_is_rejected(run):
    result = run("attributes")
    assert result["beyond"] is False
    assert result["beyond, used"] == (
        "RuntimeError: there is no opencl:7: 1 OpenCL device(s) found"
    )


def test_each_failure_is_one_clear_line_and_the_device_keeps_working(run):
    result = run("bad_requests")
    assert result["nothing"] == "(0,)"
    assert re.match(
        r"MemoryError: no buffer of 4398046511104 bytes on opencl:0 .*: CL_", result["too much"]
    )
    assert "CL_INVALID_WORK_GROUP_SIZE (8192 x 1 x 1 work-items in a group" in result["large group"]
    assert "'main_kernel' does not build" in result["spoilt"]
    assert "CL_BUILD_PROGRAM_FAILURE" in result["spoilt"]
    assert "undeclared identifier 'nowhere'" in result["spoilt"]
    assert result["damaged"] == result["cut short"]
    assert "cut short or damaged" in result["damaged"]
    assert result["at last"] == "0.0"


def test_too_much_local_memory_is_reported_in_bytes(run):
    assert "needs 8388608 bytes of local memory, and there are" in run("local_memory")


def test_two_processes_of_four_threads_each_get_correct_results(pocl):
    both = [start(pocl, "threads_at_once", 4, 50) for _ in range(2)]
    ends = [process.communicate(timeout=LIMIT) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert [json.loads(output.splitlines()[-1]) for output, _ in ends] == [0.0, 0.0]


def test_memory_does_not_grow_with_launches_timings_tensors_or_libraries(run, tmp_path):
    result = run("growth", 2000, 40, str(tmp_path))
    # 2000 leaked events or launches would be about 300 KB, as many leaked tensors 500 MB, and
    # 40 leaked kernels 40 MB.
    assert result["launch"] < 200_000
    assert result["time"] < 200_000
    assert result["allocate"] < 4_000_000
    assert result["load"] < 4_000_000


def test_a_forked_child_works_unless_its_parent_has_used_opencl(run):
    result = run("forks")
    assert result["early"] == result["own"] == result["again"] == "0.0"
    assert "before this process was forked" in result["late"]


def test_a_process_can_exit_while_kernels_run(run):
    assert run("unfinished") == "left"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OCL_ICD_VENDORS", "/nonexistent", "CL_PLATFORM_NOT_FOUND_KHR"),
        (
            "TVMTUNE_OPENCL_LIBRARY",
            "/nonexistent/libmali.so",
            "/nonexistent/libmali.so: cannot open",
        ),
        ("TVMTUNE_OPENCL_LIBRARY", "libm.so.6", "it does not define clGetPlatformIDs"),
    ],
)
def test_without_a_driver_no_device_exists_and_the_first_use_raises(run, variable, value, message):
    result = run("devices", **{variable: value})
    assert result["exist"] is False
    assert result["names"] == []
    assert result["used"].startswith("RuntimeError: no OpenCL device: ")
    assert message in result["used"]
    assert "TVMTUNE_OPENCL_LIBRARY" in result["used"]


def test_two_devices_work_in_one_process(run):
    result = run("several_devices", POCL_DEVICES="pthread basic")
    assert len(result["names"]) == 2
    assert (result["first"], result["second"]) == (0.0, 0.0)
    assert result["copied"] == [list(range(8))] * 2


@pytest.mark.parametrize(
    ("wanted", "left"),
    [("1", ["pthread"]), ("BASIC", ["basic"]), ("portable", ["basic", "pthread"])],
)
def test_a_device_is_selected_by_number_name_or_platform(run, wanted, left):
    result = run("devices", POCL_DEVICES="pthread basic", TVMTUNE_OPENCL_DEVICE=wanted)
    assert result["exist"] is True
    assert [name.split("-")[0] for name in result["names"]] == left


def test_a_selection_without_a_match_lists_the_devices(run):
    result = run("devices", TVMTUNE_OPENCL_DEVICE="mali")
    assert result["exist"] is False
    assert "TVMTUNE_OPENCL_DEVICE is 'mali', and the devices are 0: pthread" in result["used"]


@contextlib.contextmanager
def served(cache: Path, folder: Path) -> Iterator[int]:
    """The port of TVM's own RPC server, whose sessions run in its process group."""
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


def test_tvms_own_server_runs_kernels_in_each_session(run, pocl, tmp_path):
    with served(pocl, tmp_path) as port:
        result = run("remote", port, str(tmp_path))
    assert len(result) == 2
    for session in result:
        assert session["error"] == 0.0
        assert min(session["times"]) > 0
        assert json.loads(session["described"])["devices"][0]["name"] == session["name"]
