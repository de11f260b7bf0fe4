"""Convolutions as matrix products: they compute the convolution, and their parts are groups' own."""

from __future__ import annotations

import re

import pytest
import tvm
from onnxconverter_common import float16

from graph.kernels import (
    convolution_of,
    drawn,
    error,
    kernel,
    one_conv,
    prepared,
    random_args,
    run_kernel,
)
from tvmtune.graph import gemm
from tvmtune.graph.algorithms import ALGORITHMS, algorithms_for
from tvmtune.graph.gpu_spaces import GpuSpace, RegisterTiles

H100 = {
    "kind": "cuda",
    "arch": "sm_90",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}
WHOLE, CUT = (
    next(a for a in ALGORITHMS if a.name == name) for name in ("implicit-gemm", "split-k")
)
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


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_convolution_and_what_follows(case, layout):
    found = prepared(one_conv(**case), layout)
    direct, matrices = kernel(found), kernel(found, WHOLE)
    args = random_args(direct)
    expected = run_kernel(direct, args)
    assert str(matrices) != str(direct)
    shape = [int(n) for n in matrices["main"].params[1].shape]
    computed = run_kernel(matrices, [args[0], args[1].reshape(shape), *args[2:]])
    assert error(computed, expected) < 1e-5


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("case", [LONG, PIXEL])
def test_so_does_one_whose_sums_are_cut(case, layout):
    found = prepared(one_conv(**case), layout)
    assert gemm.splits(convolution_of(found))
    direct, parts = kernel(found), kernel(found, CUT)
    args = random_args(direct)
    shape = [int(n) for n in parts["main"].params[1].shape]
    computed = run_kernel(parts, [args[0], args[1].reshape(shape), *args[2:]])
    assert error(computed, run_kernel(direct, args)) < 1e-5


def test_the_pixels_are_a_multiple_that_tiles_divide():
    """7 x 7 of them have no factor but 7."""
    found = prepared(one_conv((1, 16, 7, 7)))
    text = kernel(found, WHOLE).script()
    assert "patches = T.sblock_alloc_buffer((T.int64(64), T.int64(144)))" in text


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ({"shape": (1, 512, 7, 7), "out": 512}, True),  # the last layers of a ResNet
        ({"shape": (1, 64, 112, 112), "out": 64}, False),  # enough outputs as it is
        ({"shape": (1, 16, 7, 7), "out": 16}, False),  # its sums are short
        ({"shape": (1, 2048, 1, 1), "out": 8}, True),  # one pixel
    ],
)
def test_sums_are_cut_where_outputs_are_few_and_sums_long(case, wanted):
    call = convolution_of(prepared(one_conv(**case)))
    assert gemm.splits(call) == wanted
    parts, length = gemm._parts(call), case["shape"][1] * 9
    assert length % parts == 0
    assert parts <= gemm.PARTS
    assert parts == 1 or length // parts >= gemm.SHORTEST


@pytest.mark.parametrize("case", [{"groups": 2}, {"constant": False}])
def test_what_is_no_such_product_is_left_alone(case):
    call = convolution_of(prepared(one_conv((1, 16, 8, 8), **case)))
    assert not gemm.applies(call)


def test_they_are_for_gpus_whose_threads_share_memory():
    found = prepared(one_conv())
    assert [a.name for a in algorithms_for(found.device)] == ["winograd"]


def test_no_part_of_a_sum_shares_its_group_with_another():
    """What a group has of two parts would be two copies of everything in shared memory."""
    found = prepared(one_conv(**LONG))
    modules = drawn(kernel(found, CUT), GpuSpace(H100), 3)
    assert len(modules) == 3
    for each in modules:
        bindings = re.findall(r"v_part = T.axis.spatial\(T.int64\(\d+\), (.*)\)", each.script())
        assert len(bindings) == 2  # where it begins and where it goes on
        for binding in bindings:
            assert "part_0_i_0_j_0_fused" in binding  # of groups
            assert not re.search("part_[12]_", binding)  # of virtual threads and of threads


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_tiles_in_registers_can_be_drawn_for_any_architecture(arch):
    """TVM's rule, by itself, fails for those that copy to shared memory in the background."""
    found = prepared(one_conv((1, 16, 14, 14), groups=16, tail=("relu",)))
    space = RegisterTiles(H100 | {"arch": arch}, lanes=4)
    modules = drawn(kernel(found), space, 3)
    assert len(modules) == 3
    for each in modules:
        assert 'scope="shared"' not in each.script()
    vectors = space.default(kernel(found), tvm.target.Target(space.target)).mod.script()
    assert "T.vectorized(T.int64(4)" in vectors


def test_half_precision_is_summed_in_single():
    found = prepared(float16.convert_float_to_float16(one_conv((1, 16, 7, 7))))
    text = kernel(found, WHOLE).script()
    assert 'patches = T.sblock_alloc_buffer((T.int64(64), T.int64(144)), "float16")' in text
    assert 'T.Cast("float32"' in text
