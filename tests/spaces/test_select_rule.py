"""Kernels that choose among values after a product have schedules."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import tvm
from onnx import parser

from kernels import agrees_with_reference, this_machine
from tvmtune import api
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.spaces.rule_space import RuleSpace

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
main (float[4,16,24] x, float[4,24,32] w, float[4,16,1] a, bool[4,16,32] m) => (float[4,16,32] y)
<float half = {0.5}>
{
  sums = MatMul (x, w)
  first = LeakyRelu <alpha = 0.1> (sums)
  chosen = %s
  scaled = Mul (chosen, half)
  t = Add (sums, scaled)
  y = Mul (t, t)
}
"""
CHOICES = {
    "where": "Where (m, a, half)",
    "leaky ReLU": "Identity (first)",
    "a choice of a choice": "Where (m, first, half)",
}


def model(choice: str) -> onnx.ModelProto:
    return parser.parse_model(MODEL % choice)


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_a_product_with_a_choice_after_it_is_tiled(choice, tmp_path: Path):
    plan = api.plan(OnnxNetwork(model(choice), name="choice"))
    (task,) = (each for each in plan.tasks if each.flop > 1e4)
    target = tvm.target.Target(plan.device.target)
    script = task.untuned.space.default(task.untuned.mod, target).mod.script()
    assert "T.parallel" in script and "T.vectorized" in script
    assert "where_intermediate" not in script and "leaky" not in script
    agrees_with_reference(model(choice), tmp_path)


@pytest.mark.slow
def test_a_long_chain_of_selects_is_not_copied_for_each_read():
    chain, last = [], "sums"
    for i in range(9):
        chain += [
            f"c{i} = Less ({last}, half)",
            f"n{i} = Neg ({last})",
            f"s{i} = Where (c{i}, {last}, n{i})",
        ]
        last = f"s{i}"
    text = MODEL % f"Identity ({last})"
    text = text.replace("  chosen", "  " + "\n  ".join(chain) + "\n  chosen")
    plan = api.plan(OnnxNetwork(parser.parse_model(text), name="chain"))
    (task,) = (each for each in plan.tasks if each.flop > 1e4)
    target = tvm.target.Target(plan.device.target)
    script = task.untuned.space.default(task.untuned.mod, target).mod.script()
    assert len(script) < 100_000


def test_a_choice_that_is_a_result_itself_stays_a_block():
    from tvm import te, tirx

    x, w = (te.placeholder((64, 64), name=name) for name in "xw")
    k = te.reduce_axis((0, 64), "k")
    sums = te.compute((64, 64), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="sums")
    choice = te.compute(
        (64, 64), lambda i, j: tirx.Select(sums[i, j] > 0, sums[i, j], -sums[i, j]), name="choice"
    )
    more = te.compute((64, 64), lambda i, j: choice[i, j] + 1.0, name="more")
    function = te.create_prim_func([x, w, choice, more]).with_attr("global_symbol", "main")
    target = this_machine().target
    space, mod = RuleSpace(target), tvm.IRModule({"main": function})
    script = space.default(mod, tvm.target.Target(target)).mod.script()
    assert "T.parallel" in script and 'T.sblock("choice")' in script
