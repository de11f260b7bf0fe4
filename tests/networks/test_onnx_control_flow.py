"""Loops, branches and sequences of ONNX that do not depend on the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from kernels import agrees_with_reference
from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_loops import COUNTED, HEADER
from tvmtune import api
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.control_flow import without_control_flow
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.runtime.library import Library

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
POSITIONS = """
main (float[2,3] x) => (float[6,3] y)
<int64 first = {0}, int64 last = {-1}>
{
  a = Relu (x)
  b = Neg (x)
  c = Abs (x)
  s = SequenceConstruct (x, a)
  t = SequenceInsert (s, b, last)
  u = SequenceErase (t, first)
  v = SequenceInsert (u, c, first)
  w = SequenceErase (v)
  z = SequenceInsert (w, x)
  y = ConcatFromSequence <axis = 0> (z)
}
"""
SPLITS = """
main (float[4,3] x) => (float[5,3] y)
<int64 three = {3}, int64[2] sizes = {1, 3}, int64 last = {-1}>
{
  s = SplitToSequence <axis = 0> (x, three)
  t = SplitToSequence <axis = 0> (x, sizes)
  u = SplitToSequence <axis = 1, keepdims = 0> (x)
  a = SequenceAt (s, last)
  v = SequenceInsert (t, a)
  b = SequenceAt (u, last)
  c = SequenceAt (u, last)
  d = Mul (b, c)
  m = ReduceSum <keepdims = 1> (d)
  w = ConcatFromSequence <axis = 0> (v)
  y = Mul (w, m)
}
"""
SIBLINGS = """
main (float[2,3] x) => (float[2,3] y)
<int64 count = {2}, bool yes = {1}, bool no = {0}>
{
  a = If (yes) <
    then_branch = g1 () => (float[2,3] v) { c = Constant <value_float = 2.0> ()
      w = Mul (x, c)
      v = Relu (w) },
    else_branch = g2 () => (float[2,3] v) { v = Neg (x) }
  >
  b = If (no) <
    then_branch = g3 () => (float[2,3] v) { v = Neg (x) },
    else_branch = g4 () => (float[2,3] v) { c = Constant <value_float = 3.0> ()
      w = Mul (x, c)
      v = Abs (w) }
  >
  s = Add (a, b)
  y = Loop (count, yes, s) <body = step (int64 i, bool before, float[2,3] p)
      => (bool after, float[2,3] t) {
    after = Identity (before)
    d = If (before) <
      then_branch = g5 () => (float[2,3] v) { c = Constant <value_float = 4.0> ()
        v = Add (p, c) },
      else_branch = g6 () => (float[2,3] v) { v = Neg (p) }
    >
    e = If (before) <
      then_branch = g7 () => (float[2,3] v) { c = Constant <value_float = 5.0> ()
        v = Mul (p, c) },
      else_branch = g8 () => (float[2,3] v) { v = Neg (p) }
    >
    t = Sub (d, e)
  }>
}
"""
WITHOUT_FIRST_RESULTS = """
main (float[2,3] x) => (float[2,3] y)
<int64 count = {3}, bool yes = {1}>
{
  "", a = Loop (count, yes, x, x) <body = f (int64 i, bool q, float[2,3] s, float[2,3] t)
      => (bool r, float[2,3] u, float[2,3] v) <float two = {2.0}> {
    r = Identity (q)
    u = Neg (s)
    w = Mul (t, two)
    v = Relu (w)
  }>
  "", b = Loop (count, yes, x, x) <body = g (int64 i, bool q, float[2,3] s, float[2,3] t)
      => (bool r, float[2,3] u, float[2,3] v) <float two = {3.0}> {
    r = Identity (q)
    u = Neg (s)
    w = Mul (t, two)
    v = Abs (w)
  }>
  y = Add (a, b)
}
"""
ONCE = """
main (float[2,3] x) => (float[2,3] y)
<int64 count = {1}, bool yes = {1}>
{
  y = Loop (count, yes, x) <body = step (int64 i, bool before, float[2,3] s)
      => (bool after, float[2,3] t) {
    m = ReduceSum <keepdims = 0> (s)
    after = Less (m, m)
    t = Tanh (s)
  }>
}
"""
LIST = """
main (float[2,3] x, float[2,3] z) => (float[2,3] y)
<bool yes = {1}>
{
  s = SequenceConstruct (x, z, x)
  n = SequenceLength (s)
  y = Loop (n, yes, x) <body = step (int64 i, bool before, float[2,3] a)
      => (bool after, float[2,3] b) {
    after = Identity (before)
    one = SequenceAt (s, i)
    c = Tanh (a)
    b = Add (c, one)
  }>
}
"""
EMPTY_SPLIT = """
main (float[2,3] x) => (float[2,3] y)
<int64[1] zero = {0}>
{
  none = Slice (x, zero, zero)
  s = SplitToSequence (none)
  n = SequenceLength (s)
  f = Cast <to = 1> (n)
  y = Add (x, f)
}
"""
LAST = """
main (float[2,3] x, float[2,3] z) => (float[2,3] y)
<int64 one = {1}>
{
  s = SequenceConstruct (x, z)
  n = SequenceLength (s)
  last = Sub (n, one)
  part = SequenceAt (s, last)
  y = Add (x, part)
}
"""
NAMES = """
main (float[2,3] x, float[2,3] z) => (float[2,3] y)
<int64 count = {2}, bool yes = {1}, int64 one = {1}>
{
  "s/0" = Neg (x)
  "s/0/whole" = Abs (x)
  s = SplitToSequence <axis = 0> (x)
  part = SequenceAt (s, one)
  "y/0/number" = Add ("s/0", "s/0/whole")
  "y/1/sum" = Add ("y/0/number", part)
  y = Loop (count, yes, "y/1/sum") <body = step (int64 i, bool before, float[2,3] a)
      => (bool after, float[2,3] b) {
    after = Identity (before)
    number = Cast <to = 1> (i)
    sum = Add (a, number)
    b = Mul (sum, z)
  }>
}
"""
MODELS = {
    "counted": COUNTED,
    "while": UNTIL,
    "nested": NESTED,
    "bags": BAGS,
    "a sequence": SEQUENCE,
    "positions in a sequence": POSITIONS,
    "sequences of splits": SPLITS,
    "branches with the same names": SIBLINGS,
    "a single iteration": ONCE,
    "a loop over a list": LIST,
    "a sequence of no parts": EMPTY_SPLIT,
    "a position computed from a length": LAST,
    "names like those that are made": NAMES,
}


@pytest.mark.sweep
@pytest.mark.parametrize("text", MODELS.values(), ids=list(MODELS))
def test_what_does_not_depend_on_the_data_is_computed_as_defined(text, tmp_path: Path):
    agrees_with_reference(parser.parse_model(HEADER + text), tmp_path)


def test_loops_without_their_first_results_get_names_of_their_own():
    """ONNX Runtime crashes on such loops; onnx's evaluator does not."""
    model = parser.parse_model(HEADER + WITHOUT_FIRST_RESULTS)
    inputs = {"x": np.array([[1, -2, 3], [-4, 5, -6]], "float32")}
    expected = ReferenceEvaluator(model).run(None, inputs)
    assert_equal(run_in_tvm(OnnxNetwork(model, name="loops"), inputs), expected)


@pytest.mark.parametrize("opset", [17, 11])
def test_results_of_all_iterations_are_stacked(opset: int, tmp_path: Path):
    """As by ONNX Runtime; onnx's evaluator joins them along the axis that they have."""
    pytest.importorskip("onnxruntime")
    header = HEADER.replace("17", str(opset))
    network = OnnxNetwork(parser.parse_model(header + STACKED), name="loop")
    api.compile_untuned(api.plan(network), tmp_path / "loop.so")
    library = Library.open(tmp_path / "loop.so")
    inputs = library.random_inputs(0)
    np.testing.assert_allclose(library.run(inputs)[0], network.reference(inputs)[0], rtol=1e-5)


def test_a_loop_until_the_data_say_so_is_refused():
    text = UNTIL.replace(
        "after = Less (next, five)", "m2 = ReduceSum <keepdims = 0> (s)\n after = Less (m2, m2)"
    )
    with pytest.raises(TvmtuneError, match=r"\(Loop, opset 17\) .*; the number of its iterations"):
        OnnxNetwork(parser.parse_model(HEADER + text), name="loop").to_relax()


def test_random_numbers_in_a_loop_are_not_taken_for_constants():
    text = COUNTED.replace("Cast <to = 1> (i)", "RandomUniform <shape = [2, 3]> ()")
    with pytest.raises(TvmtuneError, match=r"\(RandomUniform, opset 17\) of .* is not supported"):
        OnnxNetwork(parser.parse_model(HEADER + text), name="loop").to_relax()


@pytest.mark.parametrize(
    ("text", "count"), [(COUNTED, 10**6), pytest.param(NESTED, 200, marks=pytest.mark.slow)]
)
def test_a_loop_of_too_many_iterations_is_refused(text: str, count: int):
    model = parser.parse_model(HEADER + text)
    known = next(each for each in model.graph.initializer if each.name == "count")
    known.CopyFrom(numpy_helper.from_array(np.array(count), "count"))
    with pytest.raises(
        TvmtuneError, match=r"\(Loop, .*; the model would have more than 20,000 nodes"
    ):
        OnnxNetwork(model, name="loop").to_relax()


@pytest.mark.parametrize(
    ("text", "position"), [(SEQUENCE, "5"), (SEQUENCE, "-4"), (POSITIONS, "-3")]
)
def test_positions_that_a_sequence_does_not_have_are_refused(text: str, position: str):
    model = parser.parse_model(HEADER + text.replace("last = {-1}", f"last = {{{position}}}"))
    with pytest.raises(TvmtuneError, match=r"\(Sequence.* is not supported .* positions do not"):
        OnnxNetwork(model, name="sequence").to_relax()


def test_the_node_that_a_sequence_stays_for_is_named():
    text = """
    main (float[2,3] x, int64 p) => (float[2,3] y, int64 n)
    {
      s = SequenceConstruct (x, x)
      n = SequenceLength (s)
      t = SequenceConstruct (x, x)
      y = SequenceAt (t, p)
    }"""
    with pytest.raises(TvmtuneError, match=r"\(SequenceAt, .*; the position depends on the data"):
        OnnxNetwork(parser.parse_model(HEADER + text), name="sequences").to_relax()


def test_a_branch_within_an_operator_that_is_missing_is_not_blamed():
    text = """
    main (float[2,3] x, bool c) => (float[3] y, float[2,3] z)
    <float[3] start = {0.0, 0.0, 0.0}>
    {
      y, z = Scan <num_scan_inputs = 1, body = step (float[3] s, float[3] row)
          => (float[3] t, float[3] out) {
        t = Add (s, row)
        out = If (c) <then_branch = yes () => (float[3] a) { a = Neg (row) },
                      else_branch = no () => (float[3] b) { b = Identity (row) }>
      }> (start, x)
    }"""
    with pytest.raises(TvmtuneError, match=r"\(Scan, opset 17\) of .* is not supported"):
        OnnxNetwork(parser.parse_model(HEADER + text), name="scan").to_relax()


def test_sparse_weights_of_a_branch_are_refused():
    model = parser.parse_model(HEADER + COUNTED)
    (body,) = (a.g for node in model.graph.node for a in node.attribute if a.name == "body")
    sparse = body.sparse_initializer.add(dims=[2, 3])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, "float32"), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, "int64"), "w/indices"))
    body.node[2].input[1] = "w"
    with pytest.raises(TvmtuneError, match=r"\(Loop, .*; its weight 'w' is sparse"):
        OnnxNetwork(model, name="loop").to_relax()


def test_constants_of_iterations_that_nothing_reads_are_dropped():
    text = COUNTED.replace("count = {4}", "count = {200}")
    text = text.replace("sum = Add (s, number)", "n = Neg (number)\n sum = Add (s, n)")
    model = without_control_flow(parser.parse_model(HEADER + text))
    assert len(model.graph.node) == 401
    assert len(model.graph.initializer) <= 202


def test_a_sequence_in_a_loop_that_stays_is_refused():
    text = BAGS.replace(
        "after = Identity (before)", "n = ReduceSum <keepdims = 0> (x)\n after = Less (n, n)"
    )
    with pytest.raises(
        TvmtuneError, match=r"\(Loop, .*; the number of its iterations depends on the"
    ):
        OnnxNetwork(parser.parse_model(HEADER + text), name="bags").to_relax()


@pytest.mark.slow
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
