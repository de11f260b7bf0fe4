"""Tiles of convolutions on tensor cores: their sums on emulated warps, and the kernels around them."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from dataclasses import astuple
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm

from cuda_backend.libraries import device_code, record
from kernels import error, one_conv, random_args, run_kernel, sample_modules
from tvmtune import api
from tvmtune.errors import UsageError
from tvmtune.operators.gemm import Gather
from tvmtune.types import Task
from tvmtune_cuda import build, mma_tiles
from tvmtune_cuda.mma_tiles import Tile
from tvmtune_cuda.toolkit import NVRTC, Compiler

HEADER = mma_tiles.with_functions(mma_tiles._NAMESPACE)
EMULATION = Path(__file__).with_name("emulated_warps.h")


def emulated(tile: Tile, gather: Gather, length: int, parts: int, dtype: str, folder: Path):
    """The function of the header for one tile and convolution, compiled for this CPU:
    ``(sums, data, weights)`` with sums of shape (parts, pixels, channels), pixels padded to tiles."""
    template = HEADER[HEADER.index("template <bool BFLOAT16, int TILE_ROWS") :]
    body = re.sub(r"asm volatile\(.*?\);", ";", template.removesuffix(mma_tiles._NAMESPACE))
    numbers = [*astuple(tile), length // parts, gather.channels, *astuple(gather)[:-1]]
    pixels = -(-gather.images * gather.out_height * gather.out_width // tile.rows) * tile.rows
    grid = gather.channels // tile.columns, pixels // tile.rows, parts
    threads = 32 * tile.warp_rows * tile.warp_columns
    source = folder / "tile.cpp"
    source.write_text(
        f"""#include "{EMULATION}"
namespace tvmtune {{
{body}
extern "C" void run(float* sums, const void* data, const void* weights) {{
  launch({grid[0]}, {grid[1]}, {grid[2]}, {threads}, {tile.bytes}, [&](float* memory) {{
    tvmtune::convolution_tile<{"true" if dtype == "bfloat16" else "false"},
      {", ".join(map(str, numbers))}>(memory, memory, data, weights);
    for (int i = threadIdx.x; i < {tile.rows * tile.columns}; i += {threads})
      sums[(blockIdx.z * {pixels} + blockIdx.y * {tile.rows} + i / {tile.columns}) * {gather.channels}
           + blockIdx.x * {tile.columns} + i % {tile.columns}] = memory[i];
  }});
}}"""
    )
    library = folder / "tile.so"
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", "-o"]
    subprocess.run([*command, str(library), str(source)], check=True)
    return ctypes.CDLL(str(library)).run, (parts, pixels, gather.channels)


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "dilation", "channels", "parts", "sizes", "dtype"),
    [
        ((1, 5, 6, 16), 3, 1, 1, 32, 1, (32, 32, 32, 64), "float16"),
        ((1, 5, 6, 16), 3, 1, 1, 32, 3, (32, 32, 16, 64), "bfloat16"),
        (
            (2, 9, 7, 24),
            3,
            2,
            1,
            64,
            1,
            (64, 64, 32, 128),
            "float16",
        ),  # terms are no multiple of 32
        ((1, 9, 9, 8), 3, 1, 2, 64, 3, (32, 64, 16, 64), "float16"),
        (
            (1, 13, 11, 3),
            7,
            2,
            1,
            32,
            1,
            (32, 32, 64, 64),
            "float16",
        ),  # as an image: three channels
        ((1, 8, 8, 64), 1, 1, 1, 128, 1, (64, 128, 64, 256), "float16"),
        (
            (1, 37, 1, 48),
            1,
            1,
            1,
            64,
            1,
            (32, 64, 32, 64),
            "bfloat16",
        ),  # a matrix product of 37 rows
    ],
    ids=str,
)
def test_sums_are_those_of_the_convolution(
    shape, kernel, stride, dilation, channels, parts, sizes, dtype, tmp_path
):
    images, height, width, depth = shape
    pad = kernel // 2 * dilation
    out = [(n + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for n in (height, width)]
    gather = Gather(
        *(images, height, width, depth, kernel, *out),
        *(stride, stride, dilation, dilation, pad, pad, channels),
    )
    length = kernel * kernel * depth
    tile = Tile.of(*sizes, length // parts)
    assert tile is not None
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    rng = np.random.default_rng(0)
    data = rng.standard_normal(shape).astype(kind)
    weights = (rng.standard_normal((length, channels)) / 8).astype(kind)

    run, extents = emulated(tile, gather, length, parts, dtype, tmp_path)
    sums = np.full(extents, np.nan, "float32")
    run(*(ctypes.c_void_p(array.ctypes.data) for array in (sums, data, weights)))

    padded = np.pad(data.astype("float64"), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows, columns = (np.arange(kernel) * dilation for _ in range(2))
    patches = [
        padded[n, y * stride + rows][:, x * stride + columns].reshape(-1)
        for n in range(images)
        for y in range(out[0])
        for x in range(out[1])
    ]
    expected = np.array(patches) @ weights.astype("float64")
    np.testing.assert_allclose(sums.sum(0)[: len(expected)], expected, rtol=0, atol=2e-5)
    assert not sums[:, len(expected) :].any()  # no pixels are there


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_nvcc_and_nvrtc_compile_the_functions(arch, nvcc):
    gather = "1, 56, 56, 64, 3, 56, 56, 1, 1, 1, 1, 1, 1"
    source = f"""
      extern "C" __global__ void __launch_bounds__(128) kernel(void* data, void* weights) {{
        extern __shared__ __align__(64) float sums[];
        tvmtune::convolution_tile<true, 64, 64, 32, 6, 2, 2, 576, 64, {gather}>(
            sums, sums, data, weights);
      }}"""
    for compiler in (nvcc, Compiler(NVRTC)):
        assert b"kernel" in compiler.compile(mma_tiles.with_functions(source), arch)


def convolution(folder: Path, dtype: str = "float16", *, layout: str | None = None, **attrs):
    """The plan of a network with one convolution, and its task."""
    path = folder / "network.onnx"
    onnx.save(one_conv((1, 64, 13, 13), 64, tail=("bias", "sum", "relu")), path)
    attrs = {"arch": "sm_80", "tensor-cores": 1} | attrs
    plan = api.plan(api.load(str(path), dtype=dtype), "cuda", attrs=attrs, layout=layout)
    (task,) = [each for each in plan.tasks if "conv2d" in each.name]
    return plan, task


def named(task: Task) -> dict[str, bool]:
    """The implementations with these tiles, and whether they are preferred to others."""
    return {i.name: i.preferred for i in task.implementations if i.name.endswith("-mma")}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_library_of_a_half_precision_network_uses_them_without_records(dtype, nvcc, tmp_path):
    plan, task = convolution(tmp_path, dtype)
    assert named(task) == {"split-k-mma": True, "implicit-gemm-mma": True}
    lowered = plan.backend.lower(plan.prepared, {}, plan.device)
    assert "split_k" in json.loads(lowered.attrs["tvmtune_kernels"])[task.key]
    path = plan.backend.export_lib(lowered, plan.device, tmp_path / "lib.so")
    assert len(device_code(path)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(20,), (3, 7)], ids=str)
def test_matrix_products_with_weights_use_them(rows, nvcc, tmp_path):
    plan, task = product(tmp_path, rows)
    assert named(task) == {"matmul-split-k-mma": False, "matmul-mma": True}  # sums are short
    for name in named(task):
        each = task.implementation(name)
        chosen = {task.key: record(plan, task, each)}
        lowered = plan.backend.lower(plan.prepared, chosen, plan.device)
        assert json.loads(lowered.attrs["tvmtune_record"])[task.key] == "exact"
        assert device_code(plan.backend.export_lib(lowered, plan.device, tmp_path / f"{name}.so"))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(20,), (3, 7)], ids=str)
def test_their_program_is_the_matrix_product(rows, nvcc, tmp_path):
    """Before it is scheduled, on this CPU."""
    _, task = product(tmp_path, rows)
    direct = task.implementations[0].mod
    args = random_args(direct)
    for name in named(task):
        computed = run_kernel(task.implementation(name).mod, args)
        assert error(computed, run_kernel(direct, args)) < 2e-3  # outputs are float16


@pytest.mark.slow
def test_a_matrix_vector_product_does_not(nvcc, tmp_path):
    _, task = product(tmp_path, (1,))
    assert named(task) == {}


def product(folder: Path, rows: tuple[int, ...]) -> tuple[api.Plan, Task]:
    """The plan of a float16 network with one matrix product, and its task."""
    weights = np.random.default_rng(0).standard_normal((256, 64)).astype("float32") / 16
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [*rows, size])
        for name, size in (("x", 256), ("y", 64))
    ]
    weights_tensor = onnx.numpy_helper.from_array(weights, "w")
    graph = onnx.helper.make_graph([node], "product", values[:1], values[1:], [weights_tensor])
    path = folder / "product.onnx"
    onnx.save(onnx.helper.make_model(graph), path)
    attrs = {"arch": "sm_80", "tensor-cores": 1}
    try:
        plan = api.plan(api.load(str(path), dtype="float16"), "cuda", attrs=attrs)
    except UsageError:  # nothing can use tensor cores
        plan = api.plan(api.load(str(path), dtype="float16"), "cuda", attrs={"arch": "sm_80"})
    (task,) = [each for each in plan.tasks if "matmul" in each.name]
    return plan, task


@pytest.mark.slow
def test_a_record_of_either_is_compiled(nvcc, tmp_path):
    plan, task = convolution(tmp_path)
    for name in named(task):
        chosen = {task.key: record(plan, task, task.implementation(name))}
        lowered = plan.backend.lower(plan.prepared, chosen, plan.device)
        assert json.loads(lowered.attrs["tvmtune_record"])[task.key] == "exact"
        assert device_code(plan.backend.export_lib(lowered, plan.device, tmp_path / f"{name}.so"))


@pytest.mark.slow
def test_sampled_tiles_compile(nvcc, tmp_path):
    plan, task = convolution(tmp_path)
    options = plan.backend.make_builder(plan.device).options
    with build.sources():
        for name in named(task):
            each = task.implementation(name)
            for mod in sample_modules(each.mod, each.space, 2):
                assert device_code(
                    Path(build.build(mod, plan.device.target, options, str(tmp_path)))
                )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"arch": "sm_75"}, {"layout": "NCHW"}, {"max_shared_memory_per_block": 16 << 10}],
    ids=["older GPU", "NCHW", "lower limits"],
)
def test_other_convolutions_are_computed_without_them(options, nvcc, tmp_path):
    _, task = convolution(tmp_path, **options)
    assert named(task) == {}


@pytest.mark.slow
def test_marked_loops_that_are_no_such_tile_are_an_error(nvcc, tmp_path):
    plan, task = convolution(tmp_path)
    each = task.implementation("implicit-gemm-mma")
    mod = each.space.default(each.mod, tvm.target.Target(plan.device.target)).mod
    text = mod.script().replace('"tvmtune.columns": 64', '"tvmtune.columns": 32')
    with pytest.raises(Exception, match="not a tile of 32x32 sums"):
        mma_tiles.insert(tvm.script.from_source(text))


def test_only_sources_that_call_the_functions_get_them():
    assert mma_tiles.with_functions("void f() {}") == "void f() {}"


@pytest.mark.parametrize("threads", [96, 256])
def test_a_tile_that_the_warps_cannot_share_is_rejected(threads):
    """Each has 16x16 sums or a multiple: three warps have no grid, and eight are too many."""
    assert Tile.of(32, 32, 16, threads, length=1024) is None


def test_as_many_stages_are_used_as_fit():
    assert Tile.of(64, 64, 32, 128, length=1024).stages == 6
    assert Tile.of(64, 64, 32, 128, length=64).stages == 3
    large = Tile.of(128, 128, 64, 256, length=1024)
    assert large.stages == 2
    assert large.bytes <= 96 << 10
