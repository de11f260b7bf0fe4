"""Equal calls are legalized once, to what TVM makes of each."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm_ffi import structural_equal

from tvmtune.passes import repeated_calls


@I.ir_module
class Repetitive:
    @R.function
    def main(x: R.Tensor((2, 6), "float32"), y: R.Tensor((2, 6), "float32")):
        with R.dataflow():
            a = R.add(x, y)
            b = R.add(a, x)
            square = R.multiply(b, b)
            product = R.multiply(b, a)
            half = R.multiply(square, R.const(0.5, "float32"))
            twice = R.multiply(product, R.const(2.0, "float32"))
            double = R.multiply(twice, R.const(2.0, "float32"))
            joined = R.concat((half, double), axis=1)
            again = R.concat((joined, joined), axis=1)
            parts = R.split(again, 2, axis=1)
            left = R.permute_dims(parts[0], [1, 0])
            right = R.permute_dims(parts[1], [1, 0])
            up = R.reshape(left, (3, 8))
            down = R.reshape(right, (4, 6))
            sums = R.sum(R.reshape(down, (3, 8)), axis=[0])
            result = R.add(up, sums)
            R.output(result)
        return result


def legalized(own: dict) -> tvm.IRModule:
    return relax.transform.LegalizeOps(own)(Repetitive)


@pytest.fixture
def remembering(monkeypatch):
    """The legalizers, with nothing to recall from before."""
    monkeypatch.setattr(repeated_calls, "_kernels", {})
    return repeated_calls.legalizers(Repetitive)


def test_the_kernels_are_those_of_tvm(remembering):
    expected = legalized({})
    for _ in range(2):  # some are new, then all are recalled
        found = legalized(remembering)
        assert structural_equal(found, expected)
        names = [{v.name_hint for v in mod.get_global_vars()} for mod in (found, expected)]
        assert names[0] == names[1]


def test_equal_calls_are_legalized_once(remembering, monkeypatch):
    made = []
    original = repeated_calls._legalized

    def count(legalize, call, arguments):
        made.append(str(call.op.name))
        return original(legalize, call, arguments)

    monkeypatch.setattr(repeated_calls, "_legalized", count)
    legalized(remembering)
    # A square is another kernel than a product, as is each number.
    assert made.count("relax.multiply") == 4
    assert made.count("relax.permute_dims") == made.count("relax.split") == 1
    del made[:]
    legalized(remembering)
    assert not made


def test_what_is_remembered_is_limited(remembering, monkeypatch):
    monkeypatch.setattr(repeated_calls, "MOST", 2)
    assert structural_equal(legalized(remembering), legalized({}))
    assert len(repeated_calls._kernels) <= 2


def test_kernels_for_other_targets_are_others(remembering):
    with tvm.target.Target("llvm"):
        legalized(remembering)
    kernels = len(repeated_calls._kernels)
    with tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}):
        legalized(remembering)
    assert len(repeated_calls._kernels) == 2 * kernels
