"""Functions that tests run in a process with OpenCL; their results are JSON."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import te

import tvmtune_opencl

tvmtune_opencl.load()

TARGET = tvm.target.Target({"kind": "opencl", "host": "llvm"})


def vector_add(n: int = 1024, threads: int = 64, dtype: str = "float32") -> tvm.IRModule:
    """A kernel that adds two vectors, with ``threads`` work-items in a group."""
    a, b = (te.placeholder((n,), dtype, name) for name in "ab")
    c = te.compute((n,), lambda i: a[i] + b[i], "c")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    (loop,) = schedule.get_loops(schedule.get_sblock("c"))
    outer, inner = schedule.split(loop, [None, threads])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    return schedule.mod


def matmul(n: int = 128, tile: int = 16) -> tvm.IRModule:
    """A matrix product in tiles that the work-items of a group load to local memory together."""
    a, b = (te.placeholder((n, n), "float32", name) for name in "ab")
    k = te.reduce_axis((0, n), "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    block = schedule.get_sblock("c")
    i, j, k = schedule.get_loops(block)
    i0, i1 = schedule.split(i, [None, tile])
    j0, j1 = schedule.split(j, [None, tile])
    k0, k1 = schedule.split(k, [None, tile])
    schedule.reorder(i0, j0, i1, j1, k0, k1)
    axes = ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x")
    for loop, axis in zip((i0, j0, i1, j1), axes, strict=True):
        schedule.bind(loop, axis)
    out = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(out, j1)
    for index in (0, 1):
        read = schedule.cache_read(block, index, "shared")
        schedule.compute_at(read, k0)
        y, x = schedule.get_loops(read)[-2:]
        schedule.bind(y, "threadIdx.y")
        schedule.bind(x, "threadIdx.x")
    return schedule.mod


def tensor(array: Any, device: int = 0) -> Any:
    return tvm.runtime.tensor(np.ascontiguousarray(array), tvm.opencl(device))


def operands(n: int = 1024, device: int = 0, seed: int = 0) -> tuple[Any, Any, Any]:
    """Two vectors and room for the third."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(n).astype("float32") for _ in range(2))
    return tensor(a, device), tensor(b, device), tensor(np.zeros(n, "float32"), device)


def difference(function: Any, device: int = 0, n: int = 1024, seed: int = 0) -> float:
    """max|y - ref| of a sum of two vectors."""
    a, b, c = operands(n, device, seed)
    function(a, b, c)
    return float(np.abs(c.numpy() - (a.numpy() + b.numpy())).max())


def message(function: Any, *args: Any) -> str:
    """The exception that a call raises: its type and the last line of its message."""
    try:
        function(*args)
        tvm.opencl(0).sync()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    return "nothing"


def right_results(folder: str) -> dict[str, Any]:
    """The errors of both kernels, straight from the compiler and from an exported library."""
    results: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((128, 128)).astype("float32") for _ in range(2))
    want = x.astype("float64") @ y
    for name, mod in (("add", vector_add()), ("matmul", matmul())):
        library = tvm.compile(mod, target=TARGET)
        path = str(Path(folder) / f"{name}.so")
        library.export_library(path)
        for way, kernel in (("direct", library), ("exported", tvm.runtime.load_module(path))):
            if name == "add":
                results[f"{name}, {way}"] = difference(kernel["main"])
                continue
            out = tensor(np.zeros((128, 128), "float32"))
            kernel["main"](tensor(x), tensor(y), out)
            error = np.abs(out.numpy() - want).max() / np.abs(want).max()
            results[f"{name}, {way}"] = float(error)
    source = tvm.runtime.load_module(path).imports[0].inspect_source()
    results["local memory"] = "__local" in source
    return results


def odd_types() -> dict[str, bool]:
    results = {}
    for dtype in ("int8", "int32", "int64", "float64"):
        kernel = tvm.compile(vector_add(dtype=dtype), target=TARGET)["main"]
        a, b = (np.arange(1024).astype(dtype) for _ in range(2))
        c = tensor(np.zeros(1024, dtype))
        kernel(tensor(a), tensor(b), c)
        results[dtype] = bool((c.numpy() == a + b).all())
    return results


def scalar_arguments() -> float:
    """A kernel that takes a length and a factor by value."""
    from tvm.script import ir as I
    from tvm.script import tirx as T

    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(a: T.handle, c: T.handle, factor: T.float32):
            n = T.int64()
            A = T.match_buffer(a, (n,), "float32")
            C = T.match_buffer(c, (n,), "float32")
            for i in T.thread_binding((n + 63) // 64, thread="blockIdx.x"):
                for j in T.thread_binding(64, thread="threadIdx.x"):
                    with T.sblock("c"):
                        v = T.axis.spatial(n, i * 64 + j)
                        T.where(i * 64 + j < n)
                        C[v] = A[v] * factor

    kernel = tvm.compile(Module, target=TARGET)["main"]
    worst = 0.0
    for n in (1, 63, 1000):
        x = np.arange(n, dtype="float32")
        out = tensor(np.zeros(n, "float32"))
        kernel(tensor(x), out, 2.5)
        worst = max(worst, float(np.abs(out.numpy() - 2.5 * x).max()))
    return worst


def network() -> dict[str, Any]:
    """Two dense layers and a softmax in TVM's VM, whose memory is planned and pooled."""
    from tvm import relax
    from tvm.relax.frontend import nn
    from tvm.s_tir import dlight

    class Layers(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 32)

        def forward(self, x: Any) -> Any:
            return nn.op.softmax(self.second(nn.op.relu(self.first(x))), axis=-1)

    mod, parameters = Layers().export_tvm({"forward": {"x": nn.spec.Tensor((4, 64), "float32")}})
    target = tvm.target.Target.from_device("opencl")
    with target:
        mod = relax.get_pipeline("zero")(mod)
        rules = (dlight.gpu.Matmul(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction())
        mod = dlight.ApplyDefaultSchedule(*rules, dlight.gpu.Fallback())(mod)
    compiled = tvm.compile(mod, target=tvm.target.Target(target, host="llvm"))

    rng = np.random.default_rng(0)
    shapes = [[int(size) for size in parameter.shape] for _, parameter in parameters]
    w1, b1, w2, b2 = weights = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    x = rng.standard_normal((4, 64)).astype("float32")
    hidden = np.maximum(x.astype("float64") @ w1.T + b1, 0) @ w2.T + b2
    want = np.exp(hidden - hidden.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)

    machine = relax.VirtualMachine(compiled, tvm.opencl(0))
    inputs = [tensor(array) for array in (x, *weights)]
    errors = [np.abs(machine["forward"](*inputs).numpy() - want).max() for _ in range(3)]
    timed = machine.time_evaluator("forward", tvm.opencl(0), number=5, repeat=2)(*inputs)
    return {"error": float(max(errors) / want.max()), "times": list(timed.results)}


def times() -> dict[str, Any]:
    """One kernel's time by TVM's timer and by wall clock, in seconds."""
    library = tvm.compile(matmul(256), target=TARGET)
    device = tvm.opencl(0)
    x, y, out = (tensor(np.ones((256, 256), "float32")) for _ in range(3))
    kernel = library["main"]
    # More launches than are ever kept at once.
    timed = library.mod.time_evaluator("main", device, number=10, repeat=5)(x, y, out).results
    many = tvm.compile(vector_add(), target=TARGET)
    a, b, c = operands()
    small = many.mod.time_evaluator("main", device, number=3000, repeat=2)(a, b, c).results
    best = float("inf")
    for _ in range(5):
        device.sync()
        start = time.perf_counter()
        for _ in range(10):
            kernel(x, y, out)
        device.sync()
        best = min(best, (time.perf_counter() - start) / 10)
    return {"timed": list(timed), "small": list(small), "clock": best}


def attributes() -> dict[str, Any]:
    device = tvm.opencl(0)
    names = (
        "exist max_threads_per_block warp_size max_shared_memory_per_block compute_version "
        "device_name max_clock_rate multi_processor_count max_thread_dimensions api_version "
        "driver_version l2_cache_size_bytes total_global_memory"
    )
    results: dict[str, Any] = {name: getattr(device, name) for name in names.split()}
    results["beyond"] = tvm.opencl(7).exist
    results["beyond, used"] = message(lambda: tvm.opencl(7).sync())
    results["described"] = tvmtune_opencl.describe()
    return results


def bad_requests() -> dict[str, str]:
    """Messages of calls that fail; the device must still work afterwards."""
    results = {}
    device = tvm.opencl(0)
    empty = tvm.runtime.empty((0,), "float32", device)
    results["nothing"] = str(empty.numpy().shape)
    results["too much"] = message(lambda: tvm.runtime.empty((1 << 40,), "float32", device))

    large = tvm.compile(vector_add(16384, 8192), target=TARGET)["main"]
    results["large group"] = message(large, *operands(16384))

    def spoil(source: str, target: Any) -> str:
        return source.replace("{\n", "{\n  int x = nowhere;\n", 1)

    tvm.register_global_func("tvm_callback_opencl_postproc", spoil)
    spoilt = tvm.compile(vector_add(), target=TARGET)["main"]
    tvm_ffi.registry.remove_global_func("tvm_callback_opencl_postproc")
    results["spoilt"] = message(spoilt, *operands())

    load = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")
    results["damaged"] = message(load, b"\x02\0\0\0\0\0\0\0cl" + b"\xff" * 8)
    results["cut short"] = message(load, b"\x02\0\0")
    results["at last"] = str(difference(tvm.compile(vector_add(), target=TARGET)["main"]))
    return results


def local_memory() -> str:
    """The error of a kernel that needs more local memory than the device has."""
    return message(
        tvm.compile(matmul(2048, 1024), target=TARGET)["main"],
        *(tensor(np.zeros((2048, 2048), "float32")) for _ in range(3)),
    )


def threads_at_once(count: int, rounds: int) -> float:
    """The largest error of ``count`` threads that share a kernel; the first one times its own."""
    library = tvm.compile(vector_add(), target=TARGET)
    worst = []

    def work(seed: int) -> None:
        if seed == 0:
            args = operands(seed=seed)
            library.mod.time_evaluator("main", tvm.opencl(0), number=rounds, repeat=2)(*args)
        worst.append(max(difference(library["main"], seed=seed) for _ in range(rounds)))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(worst) if len(worst) == count else float("inf")


def growth(launches: int, libraries: int, folder: str) -> dict[str, int]:
    """How many bytes this process grows by over launches, timed launches, tensors and libraries."""

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    library = tvm.compile(vector_add(), target=TARGET)
    device = tvm.opencl(0)
    results = {}

    def launch(times: int) -> None:
        args = operands()
        for _ in range(times):
            library["main"](*args)
        device.sync()

    def time_them(times: int) -> None:
        library.mod.time_evaluator("main", device, number=times, repeat=1)(*operands())

    def allocate(times: int) -> None:
        for _ in range(times):
            tensor(np.ones(65536, "float32")).numpy()

    def load(times: int) -> None:
        args = operands()
        for _ in range(times):
            # By default TVM keeps every library that it has loaded.
            loaded = tvm_ffi.load_module(path, keep_module_alive=False)
            loaded["main"](*args)
            device.sync()
            # The host code keeps the kernels' addresses: two of the same path must not overlap.
            del loaded

    path = str(Path(folder) / "add.so")
    library.export_library(path)
    jobs = {"launch": launch, "time": time_them, "allocate": allocate, "load": load}
    for name, job in jobs.items():
        times = libraries if name == "load" else launches
        job(times // 4)
        before = resident()
        job(times)
        results[name] = resident() - before
    return results


def several_devices() -> dict[str, Any]:
    """Kernels on both of two devices, and copies between them."""
    kernel = tvm.compile(vector_add(), target=TARGET)["main"]
    there = tensor(np.arange(8, dtype="float32"), 1)
    here = there.copyto(tvm.opencl(0))
    again = here.copyto(tvm.opencl(0))
    return {
        "names": [device["name"] for device in tvmtune_opencl.describe()["devices"]],
        "first": difference(kernel, 0),
        "second": difference(kernel, 1),
        "copied": [here.numpy().tolist(), again.numpy().tolist()],
    }


def forks() -> dict[str, str]:
    """Results in children forked before and after this process used OpenCL."""

    def in_child() -> str:
        receiving, sending = os.pipe()
        if (child := os.fork()) == 0:
            try:
                kernel = tvm.compile(vector_add(), target=TARGET)["main"]
                result = str(difference(kernel))
            except Exception as error:
                result = str(error).strip().splitlines()[-1]
            os.write(sending, result.encode())
            os._exit(0)
        os.close(sending)
        with os.fdopen(receiving) as file:
            result = file.read()
        os.waitpid(child, 0)
        return result

    early = in_child()
    own = str(difference(tvm.compile(vector_add(), target=TARGET)["main"]))
    late = in_child()
    again = str(difference(tvm.compile(vector_add(), target=TARGET)["main"]))
    return {"early": early, "own": own, "late": late, "again": again}


def unfinished() -> str:
    """Exit while kernels are running and every object is still referenced."""
    global kept
    library = tvm.compile(matmul(256), target=TARGET)
    args = [tensor(np.ones((256, 256), "float32")) for _ in range(3)]
    for _ in range(50):
        library["main"](*args)
    kept = (library, args)
    # Outlives Python's own objects.
    tvm.register_global_func("kept.kernel", library["main"])
    return "left"


def devices() -> dict[str, Any]:
    """The devices, and the error of using one that does not exist."""
    device = tvm.opencl(0)
    return {
        "exist": device.exist,
        "used": message(lambda: tensor(np.zeros(4, "float32"))),
        "names": [each["name"] for each in tvmtune_opencl.describe()["devices"]],
    }


def remote(port: int, folder: str) -> list[dict[str, Any]]:
    """Upload a kernel to TVM's own server, then run and time it there, in each of two sessions."""
    path = Path(folder) / "add.so"
    tvm.compile(vector_add(), target=TARGET).export_library(str(path))
    return [_session(port, path) for _ in range(2)]


def _session(port: int, path: Path) -> dict[str, Any]:
    """The server runs each session in a new process, after the previous one has ended."""
    from tvm import rpc

    session = rpc.connect("127.0.0.1", port)
    session.upload(str(path))
    library = session.load_module(path.name)
    device = session.cl(0)
    x = np.arange(1024, dtype="float32")
    a, b, c = (tvm.runtime.tensor(x, device) for _ in range(3))
    library["main"](a, b, c)
    evaluator = library.time_evaluator("main", device, number=10, repeat=2)
    return {
        "error": float(np.abs(c.numpy() - 2 * x).max()),
        "times": list(evaluator(a, b, c).results),
        "name": device.device_name,
        "described": session.get_function("tvmtune.opencl.describe")(),
    }


def errors_of_kernels(folders: list[str]) -> list[float]:
    """max|y - ref| / max|ref| of the kernel in each folder, on the arrays beside it."""
    results = []
    for folder in map(Path, folders):
        mod = tvm.ir.load_json((folder / "kernel.json").read_text())
        with np.load(folder / "arrays.npz") as stored:
            *args, want = (stored[name] for name in stored.files)
        device = tvm.opencl(0)
        tensors = [tvm.runtime.tensor(a, device) for a in args]
        tensors.append(tvm.runtime.tensor(np.full_like(want, np.nan), device))
        tvm.compile(mod, target=TARGET)["main"](*tensors)
        results.append(float(np.abs(tensors[-1].numpy() - want).max() / np.abs(want).max()))
    return results
