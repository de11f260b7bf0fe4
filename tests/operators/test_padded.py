"""Products with padded extents equal plain ones, and compile takes them where tiles do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kernels import (
    assert_they_equal,
    error,
    one_conv,
    one_product,
    random_args,
    run_kernel,
    sample_modules,
    this_machine,
)
from tvmtune import api, cpu_features
from tvmtune.networks.bfloat16 import Bfloat16Network
from tvmtune.networks.float16 import Float16Network
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.operators import padded
from tvmtune.runtime.library import Library
from tvmtune.spaces import cpu_tiles
from tvmtune.spaces.rule_space import RuleSpace
from tvmtune.tuning.budget import Budget

SHAPES = [
    # left, right
    ((197, 64), (64, 48)),  # rows without a tile
    ((32, 24), (24, 58)),  # columns without a vector
    ((1, 53, 31), (31, 57)),
    ((2, 3, 37, 16), (2, 3, 16, 37)),  # a batch
    ((2, 29, 16), (16, 33)),  # a batch of rows
    ((16, 64), (64, 1001)),
]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("left", "right", "constant"),
    [
        pytest.param(
            *(left, right, constant),
            id=f"{left}-{right}-{'constant' if constant else 'variable'}",
            marks=() if constant or number % 2 == 0 else pytest.mark.soak,
        )
        for constant in (True, False)
        for number, (left, right) in enumerate(SHAPES)
    ],
)
def test_every_schedule_equals_the_plain_product(left, right, constant):
    (task,) = api.plan(one_product(left, right, constant=constant)).tasks
    args = random_args(task.implementation("direct").mod)
    want = run_kernel(task.implementation("direct").mod, args)
    other = task.implementation("padded")
    assert other.preferred
    if constant:  # its weights have more columns
        columns = int(other.mod["main"].params[1].shape[-1])
        args[1] = np.pad(args[1], [(0, 0)] * (args[1].ndim - 1) + [(0, columns - right[-1])])
    space = RuleSpace(this_machine().target)
    assert error(run_kernel(other.mod, args), want) < 1e-5
    default = other.space.default(other.mod, target())
    for mod in [default.mod, *sample_modules(other.mod, space, 2)]:
        assert error(run_kernel(mod, args), want) < 1e-5


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 53, 24), (2, 24, 37)), ((2, 37, 53), (2, 53, 32)), ((2, 29, 16), (16, 33))],
)
@pytest.mark.parametrize("kind", [Bfloat16Network, Float16Network])
def test_operands_in_half_precision_are_converted_first(left, right, kind, tmp_path: Path):
    """As those of attention, which are no constants: each is read many times."""
    network = kind(one_product(left, right, constant=False, tail=""))
    plan = api.plan(network, attrs={"mcpu": "haswell"})
    (task,) = (each for each in plan.tasks if each.flop > 1e3)
    assert task.untuned.name == "padded"
    script = task.untuned.mod["main"].script()
    (line,) = (line for line in script.splitlines() if "product[" in line and "left" in line)
    assert "Cast" not in line and "T.float32(" not in line
    compiled = api.compile(plan, tmp_path / "lib.so")
    inputs = random_inputs(network.inputs, 3)
    (got,) = Library.open(compiled.path).run(inputs)
    exact = np.matmul(*(inputs[name].astype("float64") for name in ("x", "w")))
    assert error(got.astype("float64"), exact) < 1e-2


def attrs() -> dict[str, str]:
    """Of a CPU like this one that takes such products by default: with AVX, tiles of all rows take
    their place."""
    return {"mcpu": "nehalem"} if cpu_features.has(this_machine().target, "avx") else {}


def attrs_for_channels() -> dict[str, str]:
    """The same for convolutions: AVX-512 takes them."""
    return {} if cpu_features.has(this_machine().target, "avx512f") else attrs()


def target():
    import tvm

    return tvm.target.Target(this_machine().target)


@pytest.mark.sweep
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_compile_takes_it_without_a_record(left, right, tmp_path: Path):
    network = one_product(left, right, constant=True)
    plan = api.plan(network, attrs=attrs())
    compiled = api.compile(plan, tmp_path / "lib.so")
    (row,) = compiled.metadata["tasks"]["list"]
    # With few registers, tiles of all rows need no padded copy.
    few_registers = cpu_features.vector_unit(plan.device.target).has_few_registers
    flattened = few_registers and right[-1] % 8 == 0
    assert row["implementation"] == ("flattened" if flattened else "padded")
    assert row["record"] == "default"
    inputs = random_inputs(network.inputs, 3)
    (got,) = Library.open(compiled.path).run(inputs)
    (want,) = network.reference(inputs)
    assert error(got, want) < 1e-5


@pytest.mark.slow
def test_a_record_decides_between_the_implementations(tmp_path: Path):
    plan = api.plan(one_product((197, 64), (64, 50), constant=True))
    log = tmp_path / "log.json"
    api.tune(plan, log, budget=Budget(trials=8))
    inputs = random_inputs(plan.network.inputs, 3)
    (want,) = plan.network.reference(inputs)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    trials = [line for line in lines if line["type"] == "trial"]
    measured = {trial["implementation"] for trial in trials if trial["seconds"]}
    assert measured >= {"direct", "padded"}
    for name in sorted(measured):
        alone = tmp_path / f"{name}.json"
        kept = [line for line in lines if line.get("implementation", name) == name]
        alone.write_text("".join(json.dumps(line) + "\n" for line in kept))
        compiled = api.compile(plan, tmp_path / f"{name}.so", [alone])
        (row,) = compiled.metadata["tasks"]["list"]
        assert (row["record"], row["implementation"]) == ("exact", name)
        (got,) = Library.open(compiled.path).run(inputs)
        assert error(got, want) < 1e-5


@pytest.mark.parametrize(
    ("left", "right"),
    [((128, 64), (64, 64)), ((1, 64), (64, 1000)), ((7, 64), (64, 16)), ((13, 5), (5, 7))],
)
def test_extents_with_good_tiles_are_left_alone(left, right):
    (task,) = api.plan(one_product(left, right, constant=True), attrs={"mcpu": "znver4"}).tasks
    assert "padded" not in [each.name for each in task.implementations]
    assert task.untuned.name == "direct"


@pytest.mark.parametrize(("rows", "most"), [(16, 16), (17, 18), (49, 49), (53, 54), (197, 198)])
def test_rows_are_rounded_up_to_the_next_number_with_a_tile(rows, most):
    assert padded.padded_rows(rows) == most


@pytest.mark.parametrize(("columns", "most"), [(15, 15), (24, 24), (58, 64), (197, 208)])
def test_columns_are_rounded_up_to_whole_vectors(columns, most):
    assert padded.padded_columns(columns) == most


@pytest.mark.sweep
@pytest.mark.parametrize(
    "case",
    [
        {"shape": (1, 24, 14, 14), "kernel": 1, "pads": (0, 0, 0, 0)},
        {"shape": (1, 3, 15, 13), "stride": 2},
        {"shape": (2, 20, 9, 9), "dilation": 2, "tail": ("bias", "relu", "sum")},
        {"shape": (1, 16, 12, 12), "pads": (1, 0, 0, 1), "tail": ()},
    ],
)
def test_padded_channels_equal_plain_ones(case, tmp_path: Path):
    network = OnnxNetwork(one_conv(out=58, **case), name="conv")
    plan = api.plan(network, attrs=attrs_for_channels())
    tasks = [t for t in plan.tasks if "padded-channels" in [i.name for i in t.implementations]]
    (task,) = tasks
    assert task.untuned.name == "padded-channels"
    compiled = api.compile(plan, tmp_path / "lib.so")
    inputs = random_inputs(network.inputs, 3)
    (got,) = Library.open(compiled.path).run(inputs)
    (want,) = network.reference(inputs)
    assert error(got, want) < 1e-5
    space = RuleSpace(this_machine().target)
    assert_they_equal(task.untuned.mod, sample_modules(task.untuned.mod, space, 2))


@pytest.mark.parametrize(
    "case", [{"out": 64}, {"out": 48, "groups": 4}, {"out": 58, "constant": False}]
)
def test_other_convolutions_keep_their_channels(case):
    network = OnnxNetwork(one_conv((1, 48, 14, 14), **case), name="conv")
    for task in api.plan(network).tasks:
        assert "padded-channels" not in [i.name for i in task.implementations]


@pytest.mark.parametrize(
    ("rows", "columns", "avx512", "avx"),
    [(28, 58, 64, 64), (56, 24, 32, 24), (13, 1000, 1024, 1024), (14, 112, 112, 112)],
)
def test_channels_are_padded_where_that_saves_time(rows, columns, avx512, avx):
    assert cpu_tiles.padded_columns(rows, columns, cpu_features.AVX512) == avx512
    assert cpu_tiles.padded_columns(rows, columns, cpu_features.AVX) == avx
