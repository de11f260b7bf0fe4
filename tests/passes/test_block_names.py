"""A record of a reduction fits every network that has the same reduction."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import te

from kernels import this_machine
from tvmtune import api
from tvmtune.passes import block_names
from tvmtune.passes.blocks import blocks
from tvmtune.spaces import traces
from tvmtune.tuning.budget import Budget


def means(count: int, folder: Path) -> api.Plan:
    """``count`` means of one shape, each of another variable."""
    nodes, last = [], "x"
    for n in range(count):
        nodes += [
            helper.make_node("Relu", [last], [f"r{n}"]),
            helper.make_node("Exp", [f"r{n}"], [f"e{n}"]),
            helper.make_node("ReduceMean", [f"e{n}"], [f"m{n}"], axes=[1], keepdims=1),
            helper.make_node("Sub", ["x", f"m{n}"], [f"s{n}"]),
        ]
        last = f"s{n}"
    spec = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "means", spec[:1], spec[1:])
    path = folder / f"means{count}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)
    return api.plan(api.load(str(path)))


def reductions(plan: api.Plan) -> dict[str, set[str]]:
    """The block names of each task with a reduction."""
    names = {}
    for task in plan.tasks:
        here = {str(b.name_hint) for b in blocks(task.implementations[0].mod["main"])}
        if any("red" in name for name in here):
            names[task.key] = here
    return names


def test_a_reduction_has_the_same_name_in_every_network(tmp_path):
    one, two = reductions(means(1, tmp_path)), reductions(means(3, tmp_path))
    assert set(one) <= set(two)
    for key, here in one.items():
        assert here == two[key]
        assert "x_red" in here


@pytest.mark.slow
def test_records_of_one_network_apply_to_another(tmp_path):
    log = tmp_path / "log.json"
    api.tune(means(1, tmp_path), log, budget=Budget(trials=6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = api.compile(means(3, tmp_path), tmp_path / "lib.so", [log])
    assert compiled.counts["exact"] >= 1


@pytest.mark.slow
def test_a_trace_with_old_block_names_still_applies(tmp_path):
    plan = means(1, tmp_path)
    task = next(task for task in plan.tasks if task.key in reductions(plan))
    space = task.implementations[0].space
    implementation = task.implementations[0]
    sch = space.default(implementation.mod, tvm.target.Target(this_machine().target))
    stored = traces.to_json(sch)
    instructions, decisions = stored
    old = [
        [i[0], i[1], [str(i[2][0]).replace("x_red", "lv7_red"), *i[2][1:]], *i[3:]]
        if i[0] == "GetSBlock"
        else i
        for i in instructions
    ]
    assert old != instructions
    again = traces.apply(implementation.mod, [old, decisions])
    assert traces.to_json(again) == stored
    assert block_names.translate(implementation.mod, stored) == stored


def kernel(reduced: str, then: str) -> tvm.IRModule:
    """``mine(data)`` with two blocks of these names."""
    data = te.placeholder((8, 8), name="data")
    k = te.reduce_axis((0, 8), "k")
    first = te.compute((8,), lambda i: te.sum(data[i, k], k), name=reduced)
    second = te.compute((8,), lambda i: first[i] + 1.0, name=then)
    return tvm.IRModule({"mine": te.create_prim_func([data, second])})


def names_in(mod: tvm.IRModule) -> list[str]:
    return [str(b.name_hint) for b in blocks(mod["mine"]) if b.name_hint != "root"]


def test_names_given_by_the_user_are_kept():
    mod = kernel("data_sum", "y")
    assert names_in(block_names.neutralize(mod, {"mine"})) == ["data_sum", "y"]
    assert names_in(block_names.neutralize(mod)) == ["x_sum", "y"]
    assert names_in(block_names.neutralize(kernel("row_sum", "y"))) == [
        "row_sum",
        "y",
    ]  # not the name of a parameter


def test_two_blocks_never_get_the_same_name():
    assert names_in(block_names.neutralize(kernel("data_sum", "x_sum"))) == ["data_sum", "x_sum"]
