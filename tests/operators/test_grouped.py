"""Convolutions with groups, in tiles of whole vectors of a group's channels."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import tvm
from onnx import TensorProto, helper
from tvm.s_tir import Schedule

from kernels import (
    assert_every_schedule_is_right,
    convolution_of,
    one_conv,
    prepared,
    this_machine,
)
from tvmtune import api
from tvmtune.cpu_features import AVX, AVX512, has
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.operators import grouped
from tvmtune.spaces import cpu_tiles

NAME = "groups"
AVX2 = {"mcpu": "haswell"}

CASES = {
    "12 channels": {"shape": (1, 48, 14, 14), "out": 48, "groups": 4},
    "20 channels, stride 2": {"shape": (1, 40, 15, 15), "out": 40, "groups": 2, "stride": 2},
    "more outputs than inputs": {"shape": (1, 12, 14, 14), "out": 60, "groups": 3},
    "two images, padding on two sides": {
        "shape": (2, 24, 9, 9),
        "out": 24,
        "groups": 2,
        "pads": (0, 1, 1, 0),
    },
    "dilation, nothing follows": {
        "shape": (1, 36, 17, 17),
        "out": 36,
        "groups": 3,
        "dilation": 2,
        "pads": (2,) * 4,
        "tail": (),
    },
    "a residual sum": {
        "shape": (1, 24, 7, 7),
        "out": 24,
        "groups": 2,
        "tail": ("bias", "relu", "sum"),
    },
    "swish": {"shape": (1, 24, 7, 7), "out": 24, "groups": 2, "tail": ("bias", "swish")},
    "one dimension": {"shape": (1, 24, 53), "out": 24, "groups": 2, "pads": (1, 1)},
    "three dimensions": {"shape": (1, 24, 3, 7, 7), "out": 24, "groups": 2, "pads": (1,) * 6},
}


@pytest.mark.sweep
@pytest.mark.filterwarnings("error:schedule rule")
@pytest.mark.parametrize("attrs", [AVX2, {}], ids=["AVX2", "this machine"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_equals_the_convolution_in_its_default_and_in_sampled_schedules(
    case, attrs, tmp_path: Path
):
    network = OnnxNetwork(one_conv(**case), name="conv")
    dims = len(case["shape"]) - 2
    name = NAME if dims == 2 else f"{NAME}-{dims}d"
    assert_every_schedule_is_right(network, name, tmp_path, attrs)


@pytest.mark.slow
@pytest.mark.filterwarnings("error:schedule rule")
def test_what_broadcasts_the_convolution_is_computed_after_it(tmp_path: Path):
    """Its elements do not belong to one tile."""
    model = one_conv((1, 24, 9, 9), 24, groups=2)
    residual = helper.make_tensor_value_info("residual", TensorProto.FLOAT, (3, 24, 9, 9))
    model.graph.input.append(residual)
    (last,) = (node for node in model.graph.node if model.graph.output[0].name in node.output)
    last.output[0] = "of one image"
    model.graph.node.append(helper.make_node("Add", ["of one image", "residual"], ["y"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 24, 9, 9)))
    network = OnnxNetwork(model, name="conv")
    assert_every_schedule_is_right(network, NAME, tmp_path, AVX2)


@pytest.mark.slow
@pytest.mark.skipif(not has(this_machine().target, "avx512f"), reason="this CPU lacks AVX-512")
@pytest.mark.parametrize("channels", [24, 40, 48])
def test_it_equals_the_convolution_in_vectors_of_512_bits(channels: int, tmp_path: Path):
    conv = one_conv((1, 2 * channels, 14, 14), 2 * channels, groups=2)
    assert_every_schedule_is_right(OnnxNetwork(conv, name="conv"), NAME, tmp_path, {})


def test_all_that_follows_the_sums_is_computed_with_each_tile():
    schedule = default_schedule("swish")
    blocks = map(schedule.get, schedule.get_child_blocks(schedule.get_sblock("root")))
    computed = [b for b in blocks if "meta_schedule.layout_rewrite_preproc" not in b.annotations]
    assert len(computed) == 4, "padding, zeros of the sums, sums, and one epilogue"


def test_vectors_stay_whole_where_padding_is_part_of_the_sums():
    script = default_schedule("more outputs than inputs").mod.script()
    assert "T.if_then_else" in script
    assert "T.vectorized(T.int64(8)" in script


def default_schedule(case: str) -> Schedule:
    """Of the convolution with AVX2."""
    plan = api.plan(OnnxNetwork(one_conv(**CASES[case]), name="conv"), attrs=AVX2)
    (task,) = [t for t in plan.tasks if t.untuned.name == NAME]
    return task.untuned.space.default(task.untuned.mod, tvm.target.Target(plan.device.target))


@pytest.mark.parametrize(
    ("unit", "columns", "vectors"),
    [
        (AVX, 4, None),
        (AVX, 12, 2),
        (AVX, 24, None),
        (AVX512, 8, None),
        (AVX512, 12, 1),
        (AVX512, 16, None),
        (AVX512, 24, 2),
        (AVX512, 40, 3),
        (AVX512, 48, 3),
        (AVX512, 64, None),
    ],
)
def test_groups_have_such_tiles_where_they_were_quicker(unit, columns, vectors):
    assert cpu_tiles.group_vectors(14, columns, unit) == vectors


@pytest.mark.parametrize(
    "case",
    [
        {"groups": 1},
        {"groups": 24},
        {"groups": 2, "constant": False},
        {"groups": 2, "shape": (1, 24, 3, 3)},
    ],
    ids=["one group", "depthwise", "weights are data", "few pixels"],
)
def test_other_convolutions_are_left_to_other_implementations(case):
    call = convolution_of(prepared(one_conv(**{"shape": (1, 24, 14, 14), "out": 24, **case})))
    assert not grouped.applies_to(partial(cpu_tiles.group_vectors, unit=AVX), call)
