"""The thread pool that libraries for x86-64 bring along, called as kernels call it.

Each test runs a program of its own, because threads belong to a process. The pool is linked with one
function more, which exports the hidden pointer.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from tvm_ffi import libinfo

from libraries import host_device
from tvmtune.library import thread_pool
from tvmtune.machine import linkers
from tvmtune.machine.threads import allowed_cpus

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="other machines use TVM's pool"
)
LIMIT = 60

EXPORT = """
target triple = "{triple}"
@__TVMBackendParallelLaunch = external hidden global ptr
define i32 @launch_parts(ptr %function, ptr %data, i32 %parts) {{
  %launch = load ptr, ptr @__TVMBackendParallelLaunch
  %status = call i32 %launch(ptr %function, ptr %data, i32 %parts)
  ret i32 %status
}}
define internal i32 @nothing(i32 %part, ptr %group, ptr %data) {{
  ret i32 0
}}
define void @launch_for_ever() {{
entry:
  br label %again
again:
  call i32 @launch_parts(ptr @nothing, ptr null, i32 0)
  br label %again
}}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 8, !"PIC Level", i32 2}}
"""

PRELUDE = """
import ctypes, os, resource, sys, threading, time
ctypes.CDLL(sys.argv[2], ctypes.RTLD_GLOBAL)
class Any(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_int64)]
class Group(ctypes.Structure):
    _fields_ = [("sync", ctypes.c_void_p), ("parts", ctypes.c_int32)]
Part = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(Group), ctypes.c_void_p)
pool = ctypes.CDLL(sys.argv[1])

def threads(number):
    given, result = Any(1, 0, number), Any()
    assert pool.__tvm_ffi_tvmtune_threads(None, ctypes.byref(given), 1, ctypes.byref(result)) == 0
    assert result.type == 1  # an integer
    return result.value

def launch(parts=0, body=lambda part, group: 0):
    "The status, and which thread ran which part of how many."
    ran = []
    def run(part, group, _):
        ran.append((part, group.contents.parts, threading.get_native_id()))
        return body(part, group.contents.parts)
    kept = Part(run)
    return pool.launch_parts(kept, None, parts), sorted(ran)

def parts(ran):
    return [part for part, _, _ in ran]

def alive():
    return len(os.listdir("/proc/self/task"))
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of nothing but a pool of three threads."""
    folder = tmp_path_factory.mktemp("pool")
    device = host_device(3)
    assert thread_pool.is_supported(device)
    source = folder / "export.ll"
    source.write_text(EXPORT.format(triple=tvm.target.codegen.llvm_get_system_triple()))
    tvm.runtime.load_module(str(source)).write_to_file(str(folder / "export.o"))
    objects = [thread_pool.write_object(folder / "threads.o", device), str(folder / "export.o")]
    library = folder / "pool.so"
    subprocess.run([*linkers.find_linker(), "-shared", "-o", str(library), *objects], check=True)
    return library


def run(pool: Path, code: str, **variables: str) -> str:
    """What a program prints that has loaded the pool."""
    names = ("TVM_NUM_THREADS", "OMP_NUM_THREADS")
    env = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, str(pool), libinfo.find_libtvm_ffi()],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**env, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_part_runs_once(pool):
    run(
        pool,
        """
threads(3)
for number in [1, 2, 3, 4, 7, 3, 2, 300] * 20:
    status, ran = launch(number)
    assert status == 0 and parts(ran) == list(range(number)), ran
    assert {of for _, of, _ in ran} == {number}
""",
    )


def test_parts_run_in_threads_of_their_own_until_they_sleep_and_after(pool):
    """Each part waits for the others, which one thread alone could not do."""
    run(
        pool,
        """
threads(3)
together = threading.Barrier(3)
def wait(part, number):
    together.wait(20)
    return 0
for pause in (0, 0.05, 0, 0.05):
    time.sleep(pause)
    status, ran = launch(0, wait)
    assert len({thread for _, _, thread in ran}) == 3, ran
    assert (0, 3, threading.get_native_id()) in ran  # a thread keeps its part, the caller the first
""",
    )


def test_sleeping_threads_take_no_time(pool):
    run(
        pool,
        """
threads(3)
launch()
time.sleep(0.1)
before = time.process_time()
time.sleep(0.5)
assert time.process_time() - before < 0.05
""",
    )


def test_a_second_caller_computes_alone(pool):
    """It would wait for ever for threads that wait for it."""
    run(
        pool,
        """
threads(3)
inner = []
def nest(part, number):
    if part == 0:
        def other():
            inner.extend([launch(), launch(5)])
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    return 0
status, ran = launch(0, nest)
assert status == 0 and parts(ran) == [0, 1, 2]
(first, alone), (second, all_five) = inner
assert (first, second) == (0, 0)
assert [entry[:2] for entry in alone] == [(0, 1)]
assert parts(all_five) == [0, 1, 2, 3, 4] and len({thread for _, _, thread in all_five}) == 1
""",
    )


def test_a_fork_starts_threads_of_its_own(pool):
    """Those of the first process do not exist in it; the caller computes its first parts alone."""
    run(
        pool,
        """
threads(3)
launch()
for pause in (0, 0.1):  # while they spin, and while they sleep
    time.sleep(pause)
    child = os.fork()
    if child == 0:
        status, ran = launch()
        assert status == 0 and parts(ran) == [0, 1, 2]
        assert {thread for _, _, thread in ran} == {threading.get_native_id()}
        together = threading.Barrier(3)
        status, ran = launch(0, lambda part, number: together.wait(20) and 0)
        os._exit(0 if len({thread for _, _, thread in ran}) == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
""",
    )


def test_without_room_for_threads_the_caller_computes_everything(pool):
    run(
        pool,
        """
threads(3)
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + 1_000_000, resource.RLIM_INFINITY))
status, ran = launch()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert status == 0 and parts(ran) == [0, 1, 2]
assert {thread for _, _, thread in ran} == {threading.get_native_id()}
before = alive()
launch()
assert alive() == before  # it does not try again at each call
threads(3)
launch()
assert alive() == before + 2
""",
    )


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failed_part_fails_the_call(pool, failing):
    """The error of a thread is in that thread only, so the caller gets a new one."""
    run(
        pool,
        f"""
threads(3)
together = threading.Barrier(3)
def fail(part, number):
    together.wait(20)
    return -1 if part == {failing} else 0
status, ran = launch(0, fail)
assert status == -1 and parts(ran) == [0, 1, 2]
assert launch()[0] == 0  # and not the next
""",
    )


def test_the_threads_end_when_the_library_is_unloaded(pool):
    run(
        pool,
        """
import _ctypes
before = alive()
threads(3)
for pause in (0, 0.05):
    launch()
    assert alive() == before + 2
    time.sleep(pause)  # they spin, or sleep
    _ctypes.dlclose(pool._handle)
    assert "pool.so" not in open("/proc/self/maps").read()
    assert alive() == before
    pool = ctypes.CDLL(sys.argv[1])
    threads(3)
""",
    )


@pytest.mark.slow
def test_a_process_ends_while_another_thread_computes(pool):
    """At exit the threads end, whatever is being offered to them."""
    for _ in range(12):
        run(
            pool,
            """
threads(3)
threading.Thread(target=pool.launch_for_ever, daemon=True).start()
time.sleep(0.02)
""",
        )


def test_a_fork_that_wants_more_threads_starts_all_of_them(pool):
    run(
        pool,
        """
threads(2)
launch()
child = os.fork()
if child == 0:
    threads(3)
    launch()
    together = threading.Barrier(3)
    ran = launch(0, lambda part, number: together.wait(20) and 0)[1]
    os._exit(0 if len({thread for _, _, thread in ran}) == 3 else 1)
assert os.waitpid(child, 0)[1] == 0
""",
    )


def test_the_number_of_threads_must_be_an_integer(pool):
    run(
        pool,
        """
import struct
bits = struct.unpack("q", struct.pack("d", 4.0))[0]
result = Any()
for given, count in ((Any(3, 0, bits), 1), (None, 0)):
    pointer = given and ctypes.byref(given)
    assert pool.__tvm_ffi_tvmtune_threads(None, pointer, count, ctypes.byref(result)) == -1
assert threads(3) == 3
""",
    )


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({}, min(3, len(allowed_cpus()))),
        ({"TVM_NUM_THREADS": "5"}, 5),
        ({"OMP_NUM_THREADS": "4"}, 4),
        ({"TVM_NUM_THREADS": "2", "OMP_NUM_THREADS": "4"}, 2),
        ({"TVM_NUM_THREADS": "no", "OMP_NUM_THREADS": "-1"}, min(3, len(allowed_cpus()))),
        ({"TVM_NUM_THREADS": "1000000"}, thread_pool.LIMIT),
    ],
)
def test_the_number_of_threads(pool, variables, number):
    """That of the environment, or else that which the library was tuned for, limited to the CPUs."""
    assert run(pool, "print(threads(0), launch()[1][0][1])", **variables).split() == [
        str(number),
        str(number),
    ]
    assert run(pool, "print(threads(2), launch()[1][0][1])", **variables).split() == ["2", "2"]


def test_one_cpu_has_one_thread(pool):
    code = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nprint(threads(0))"
    assert run(pool, code).split() == ["1"]
