"""Convolutions as matrix products: implicit GEMM and split-K."""

from __future__ import annotations

import re

import pytest
import tvm
from onnxconverter_common import float16
from tvm import tirx

from kernels import (
    convolution_of,
    error,
    kernel,
    one_conv,
    prepared,
    random_args,
    relax_conv,
    run_kernel,
    sample_modules,
)
from tvmtune import host
from tvmtune.operators import gemm
from tvmtune.operators.implementations import IMPLICIT_GEMM, SPLIT_K
from tvmtune.operators.winograd_calls import fitting
from tvmtune.operators.winograd_transforms import F4
from tvmtune.passes.bindings import bindings
from tvmtune.spaces.gpu_spaces import GpuSpace, RegisterTiles

H100 = {
    "kind": "cuda",
    "arch": "sm_90",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}
CASES = [
    {"shape": (1, 16, 7, 7)},
    {"shape": (2, 16, 9, 5), "pads": (0, 1, 2, 0)},
    {"shape": (1, 8, 14, 14), "out": 24, "kernel": 1, "pads": (0, 0, 0, 0)},
    {"shape": (1, 3, 17, 17), "kernel": 7, "pads": (3, 3, 3, 3), "stride": 2},
    {"shape": (2, 16, 8, 8), "kernel": 1, "pads": (0, 0, 0, 0), "stride": 2},
    {"shape": (1, 16, 12, 12), "pads": (2, 2, 2, 2), "dilation": 2},
]
LONG = {"shape": (1, 64, 7, 7), "out": 32}
PIXEL = {"shape": (1, 256, 1, 1), "out": 16, "kernel": 1, "pads": (0, 0, 0, 0)}


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("case", CASES)
def test_implicit_gemm_equals_the_fused_convolution(case, layout):
    network = prepared(one_conv(**case), layout)
    direct, matrices = kernel(network), kernel(network, IMPLICIT_GEMM)
    args = random_args(direct)
    expected = run_kernel(direct, args)
    assert str(matrices) != str(direct)
    shape = [int(n) for n in matrices["main"].params[1].shape]
    computed = run_kernel(matrices, [args[0], args[1].reshape(shape), *args[2:]])
    assert error(computed, expected) < 1e-5


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_an_image_of_unknown_height_is_left_to_the_direct_convolution(layout):
    known, _ = relax_conv(layout, dtype="float32")
    mod, _ = relax_conv(layout, tirx.Var("height", "int64"), dtype="float32")
    call, unknown = (bindings(each)[0].value for each in (known, mod))
    assert gemm.applies(call)
    assert not gemm.applies(unknown)
    assert not gemm.splits(unknown)
    assert (fitting([F4], call) is not None) is (layout == "NHWC")
    assert fitting([F4], unknown) is None


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("case", [LONG, PIXEL])
def test_split_k_equals_the_fused_convolution(case, layout):
    network = prepared(one_conv(**case), layout)
    assert gemm.splits(convolution_of(network))
    direct, parts = kernel(network), kernel(network, SPLIT_K)
    args = random_args(direct)
    shape = [int(n) for n in parts["main"].params[1].shape]
    computed = run_kernel(parts, [args[0], args[1].reshape(shape), *args[2:]])
    assert error(computed, run_kernel(direct, args)) < 1e-5


def test_the_number_of_pixels_is_padded_to_a_multiple_of_tiles():
    """49 pixels (7 x 7) have no factor but 7."""
    network = prepared(one_conv((1, 16, 7, 7)))
    text = kernel(network, IMPLICIT_GEMM).script()
    assert "patches = T.sblock_alloc_buffer((T.int64(64), T.int64(144)))" in text


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ({"shape": (1, 512, 7, 7), "out": 512}, True),  # last layers of a ResNet
        ({"shape": (1, 64, 112, 112), "out": 64}, False),  # enough outputs
        ({"shape": (1, 16, 7, 7), "out": 16}, False),  # short sums
        ({"shape": (1, 2048, 1, 1), "out": 8}, True),  # one pixel
    ],
)
def test_sums_are_split_if_they_are_long_and_outputs_few(case, wanted):
    call = convolution_of(prepared(one_conv(**case)))
    assert gemm.splits(call) == wanted
    parts, length = gemm._parts(call), case["shape"][1] * 9
    assert length % parts == 0
    assert parts <= gemm.PARTS
    assert parts == 1 or length // parts >= gemm.SHORTEST


@pytest.mark.parametrize("case", [{"groups": 2}, {"constant": False}])
def test_other_convolutions_are_not_matrix_products(case):
    call = convolution_of(prepared(one_conv((1, 16, 8, 8), **case)))
    assert not gemm.applies(call)


GEMMS = ["implicit-gemm", "implicit-gemm-1d", "implicit-gemm-3d"]
FLAT_WINOGRADS = [
    *(f"winograd-{tile}-fused" for tile in ("4x4", "4", "2x2", "2")),
    *(f"winograd-{tile}{by}" for tile in ("4x4", "4", "2x2", "2") for by in ("-rows", "")),
]
WINOGRADS = [
    *FLAT_WINOGRADS,
    *(f"{name}-1d" for name in FLAT_WINOGRADS if "x" not in name),
    *(f"{name}-3d" for name in FLAT_WINOGRADS),
]
GROUPS = ["groups", "groups-1d", "groups-3d"]
FOR_CPUS = [*WINOGRADS, *GROUPS, "padded", "padded-channels"]


@pytest.mark.parametrize(
    ("backend", "attrs", "names"),
    [
        (
            "cpu",
            {"mcpu": "haswell"},
            [*WINOGRADS, "strassen", *GEMMS, "flattened", *GROUPS, "padded", "padded-channels"],
        ),
        (
            "cpu",
            {"mcpu": "znver4"},
            [
                *("bfloat16-convolution", "bfloat16-product"),
                *WINOGRADS,
                "strassen",
                *GEMMS,
                "flattened",
                *GROUPS,
                *("padded", "padded-channels"),
            ],
        ),
        ("arm", {"board": "rk3399"}, FOR_CPUS),
        ("cuda", {"arch": "sm_80"}, ["register-tiles", "winograd", "implicit-gemm", "split-k"]),
        ("rocm", {"arch": "gfx90a"}, ["register-tiles", "winograd", "implicit-gemm", "split-k"]),
        ("mali", {"board": "rk3399"}, ["shared", "winograd"]),
    ],
)
def test_each_backend_offers_these_implementations(backend, attrs, names):
    """Implicit GEMM and split-K are for GPUs with fast shared memory."""
    loaded = host.backend(backend)
    offered = loaded.implementations(loaded.make_target(attrs))
    tuned = [each for each in offered if not getattr(each, "superseded", False)]
    assert [each.name for each in tuned] == names


def test_each_part_of_a_sum_has_its_own_thread_block():
    """A thread block with two parts would hold two copies of everything in shared memory."""
    network = prepared(one_conv(**LONG))
    modules = sample_modules(kernel(network, SPLIT_K), GpuSpace(H100), 3)
    assert len(modules) == 3
    for each in modules:
        bindings = re.findall(r"v_part = T.axis.spatial\(T.int64\(\d+\), (.*)\)", each.script())
        assert len(bindings) == 2  # initialization and update
        for binding in bindings:
            assert "part_0_i_0_j_0_fused" in binding  # bound to thread blocks
            assert not re.search("part_[12]_", binding)  # bound to virtual threads or threads


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_register_tiles_can_be_sampled_for_any_architecture(arch):
    """TVM's own rule fails on architectures with asynchronous copies to shared memory."""
    network = prepared(one_conv((1, 16, 14, 14), groups=16, tail=("relu",)))
    space = RegisterTiles(H100 | {"arch": arch}, lanes=4)
    modules = sample_modules(kernel(network), space, 3)
    assert len(modules) == 3
    for each in modules:
        assert 'scope="shared"' not in each.script()
    vectors = space.default(kernel(network), tvm.target.Target(space.target)).mod.script()
    assert "T.vectorized(T.int64(4)" in vectors


def test_half_precision_accumulates_in_single_precision():
    network = prepared(float16.convert_float_to_float16(one_conv((1, 16, 7, 7))))
    text = kernel(network, IMPLICIT_GEMM).script()
    assert 'patches = T.sblock_alloc_buffer((T.int64(64), T.int64(144)), "float16")' in text
    assert 'T.Cast("float32"' in text
