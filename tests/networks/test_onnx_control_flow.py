"""Loops, branches and sequences of ONNX that do not depend on the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from kernels import agrees_with_reference
from tvmtune import api
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.runtime.library import Library

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'

COUNTED = """
main (float[2,3] x) => (float[2,3] y)
<int64 count = {4}, bool yes = {1}>
{
  y = Loop (count, yes, x) <body = step (int64 i, bool before, float[2,3] s)
      => (bool after, float[2,3] t) {
    after = Identity (before)
    number = Cast <to = 1> (i)
    sum = Add (s, number)
    t = Tanh (sum)
  }>
}
"""
UNTIL = """
main (float[2,3] x) => (float[2,3] y)
<bool yes = {1}, int64 first = {0}, int64 one = {1}, int64 five = {5}>
{
  n, y = Loop ("", yes, first, x) <body = step (int64 i, bool before, int64 m, float[2,3] s)
      => (bool after, int64 next, float[2,3] t) {
    next = Add (m, one)
    after = Less (next, five)
    t = Mul (s, s)
  }>
}
"""
STACKED = """
main (float[2,3] x) => (float[3,2,3] y)
<int64 count = {3}, bool yes = {1}>
{
  last, y = Loop (count, yes, x) <body = step (int64 i, bool before, float[2,3] s)
      => (bool after, float[2,3] t, float[2,3] kept) {
    after = Identity (before)
    t = Add (s, x)
    kept = Relu (t)
  }>
}
"""
NESTED = """
main (float[2,3] x) => (float[2,3] y)
<int64 count = {2}, bool yes = {1}>
{
  y = Loop (count, yes, x) <body = outer (int64 i, bool a, float[2,3] s) => (bool b, float[2,3] t) {
    b = Identity (a)
    zero = Constant <value_int = 0> ()
    is_first = Equal (i, zero)
    u = If (is_first) <
      then_branch = g1 () => (float[2,3] v) { w = Neg (s)
        v = Exp (w) },
      else_branch = g2 () => (float[2,3] v) { w = Abs (s)
        v = Sqrt (w) }
    >
    t = Loop (count, yes, u) <body = inner (int64 j, bool c, float[2,3] p) => (bool d, float[2,3] q) {
      d = Identity (c)
      q = Add (p, s)
    }>
  }>
}
"""
BAGS = """
main (float[6,4] x) => (float[3,4] y)
<int64 count = {3}, bool yes = {1}, int64[1] two = {2}, int64[1] all = {-1}>
{
  none = SequenceEmpty ()
  bags = Loop (count, yes, none) <body = bag (int64 i, bool before, seq(float[1,4]) s)
      => (bool after, seq(float[1,4]) t) {
    after = Identity (before)
    index = Reshape (i, all)
    start = Mul (index, two)
    end = Add (start, two)
    part = Slice (x, start, end)
    zero = Constant <value_ints = [0]> ()
    sum = ReduceSum <keepdims = 1> (part, zero)
    t = SequenceInsert (s, sum)
  }>
  y = ConcatFromSequence <axis = 0> (bags)
}
"""
SEQUENCE = """
main (float[2,3] x) => (float[4,2,3] y)
<int64 zero = {0}, int64 last = {-1}>
{
  a = Relu (x)
  b = Neg (x)
  s = SequenceConstruct (a, b)
  t = SequenceInsert (s, x, zero)
  u = SequenceInsert (t, a)
  c = SequenceAt (t, last)
  n = SequenceLength (t)
  m = Cast <to = 1> (n)
  d = Mul (c, m)
  v = SequenceInsert (t, d)
  y = ConcatFromSequence <axis = 0, new_axis = 1> (v)
}
"""


@pytest.mark.sweep
@pytest.mark.parametrize(
    "text",
    [COUNTED, UNTIL, NESTED, BAGS, SEQUENCE],
    ids=["counted", "while", "nested", "bags", "a sequence"],
)
def test_what_does_not_depend_on_the_data_is_computed_as_defined(text, tmp_path: Path):
    agrees_with_reference(parser.parse_model(HEADER + text), tmp_path)


def test_results_of_all_iterations_are_stacked(tmp_path: Path):
    """As by ONNX Runtime; onnx's evaluator joins them along the axis that they have."""
    pytest.importorskip("onnxruntime")
    network = OnnxNetwork(parser.parse_model(HEADER + STACKED), name="loop")
    api.compile_untuned(api.plan(network), tmp_path / "loop.so")
    library = Library.open(tmp_path / "loop.so")
    inputs = library.random_inputs(0)
    np.testing.assert_allclose(library.run(inputs)[0], network.reference(inputs)[0], rtol=1e-5)


def test_a_loop_until_the_data_say_so_is_refused():
    text = UNTIL.replace(
        "after = Less (next, five)", "m2 = ReduceSum <keepdims = 0> (s)\n after = Less (m2, m2)"
    )
    with pytest.raises(TvmtuneError, match=r"\(Loop, opset 17\) of .* is not supported"):
        OnnxNetwork(parser.parse_model(HEADER + text), name="loop").to_relax()


def test_random_numbers_in_a_loop_are_not_taken_for_constants():
    text = COUNTED.replace("Cast <to = 1> (i)", "RandomUniform <shape = [2, 3]> ()")
    with pytest.raises(TvmtuneError, match=r"\(RandomUniform, opset 17\) of .* is not supported"):
        OnnxNetwork(parser.parse_model(HEADER + text), name="loop").to_relax()


def test_a_loop_of_too_many_iterations_is_refused():
    model = parser.parse_model(HEADER + COUNTED)
    count = next(each for each in model.graph.initializer if each.name == "count")
    count.CopyFrom(numpy_helper.from_array(np.array(10**6), "count"))
    with pytest.raises(TvmtuneError, match=r"\(Loop, opset 17\) of .* is not supported"):
        OnnxNetwork(model, name="loop").to_relax()


def test_bags_of_embeddings_of_pytorch_are_imported(tmp_path: Path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Bags(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = torch.nn.EmbeddingBag(10, 4, mode="sum")

        def forward(self, indices):
            return self.bags(indices)

    path = tmp_path / "bags.onnx"
    torch.onnx.export(
        Bags(), (torch.zeros(3, 2, dtype=torch.int64),), path, dynamo=True, external_data=False
    )
    model = onnx.load(path)
    assert "Loop" in {node.op_type for node in model.graph.node}
    agrees_with_reference(model, tmp_path)
