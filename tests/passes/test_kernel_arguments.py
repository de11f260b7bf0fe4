"""What a kernel's program says about its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import te, topi

from tvmtune.passes.kernel_arguments import KernelArgument, kernel_arguments


def arguments(*tensors: Any) -> list[KernelArgument]:
    return kernel_arguments(tvm.IRModule({"main": te.create_prim_func(list(tensors))}))


def bounds(argument: KernelArgument) -> tuple[int | None, int | None]:
    return argument.low, argument.high


TABLE = te.placeholder((100, 8), "float32", name="table")
INDEX = te.placeholder((5,), "int64", name="index")


def rows(index: Any) -> Any:
    return te.compute((5, 8), lambda i, j: TABLE[index(i), j], name="rows")


@pytest.mark.parametrize(
    ("index", "highest"),
    [
        (lambda i: INDEX[i], 99),
        (lambda i: INDEX[i].astype("int32"), 99),
        (lambda i: te.if_then_else(INDEX[i] < 0, INDEX[i] + 100, INDEX[i]), 99),
        (lambda i: te.max(te.min(INDEX[i], 99), 0), 99),
        (lambda i: INDEX[i] * 2 + 1, 49),
        (lambda i: INDEX[i] - INDEX[4 - i] + 50, 49),
        (lambda i: INDEX[i] * 1000, 0),
    ],
)
def test_an_index_stays_within_its_table(index, highest):
    table, found, out = arguments(TABLE, INDEX, rows(index))
    assert bounds(table) == (None, None)
    assert bounds(found) == (0, highest)
    assert [a.written for a in (table, found, out)] == [False, False, True]


def test_an_index_is_followed_through_intermediate_buffers():
    doubled = te.compute((5,), lambda i: INDEX[i].astype("int32") * 2, name="doubled")
    _, found, _ = arguments(TABLE, INDEX, rows(lambda i: doubled[i]))
    assert bounds(found) == (0, 49)


def test_each_index_has_its_own_table():
    other = te.placeholder((7, 8), "float32", name="other")
    place = te.placeholder((5,), "int32", name="place")
    both = te.compute((5, 8), lambda i, j: TABLE[INDEX[i], j] + other[place[i], j], name="both")
    found = arguments(TABLE, other, INDEX, place, both)
    assert [bounds(a) for a in found[2:4]] == [(0, 99), (0, 6)]


def test_narrow_indices_are_bounded_by_their_type_or_table():
    narrow = te.placeholder((5,), "uint8", name="narrow")
    _, found, _ = arguments(TABLE, narrow, rows(lambda i: narrow[i].astype("int32")))
    assert bounds(found) == (0, 99)


def test_shifts_and_divisors():
    x, s, d = (te.placeholder((5,), "int32", name=name) for name in "xsd")
    y = te.compute((5,), lambda i: te.floordiv(x[i] >> s[i], d[i]), name="y")
    number, shift, divisor, _ = arguments(x, s, d, y)
    assert (bounds(number), number.shifts) == ((None, None), False)
    assert shift.shifts
    assert bounds(divisor) == (1, 7)


def test_the_longest_sum_counts():
    a, b = te.placeholder((4, 32), name="a"), te.placeholder((32, 4), name="b")
    assert {x.products for x in arguments(a, b, topi.matmul(a, b))} == {32}
    assert {x.products for x in arguments(a, topi.nn.relu(a))} == {1}


def test_several_outputs():
    x = te.placeholder((4,), name="x")
    both = te.compute((4,), lambda i: (x[i] + 1.0, x[i] * 2.0), name="both")
    assert [a.written for a in arguments(x, *both)] == [False, True, True]


INTEGERS = te.placeholder((6, 4), "int32", name="integers")
FLOATS = te.placeholder((6, 4), "float32", name="floats")


def elements(value: Any) -> Any:
    return te.compute((6, 4), value, name="out")


@pytest.mark.parametrize(
    ("out", "exact"),
    [
        (elements(lambda i, j: INTEGERS[i, j] * 3 - 1), True),
        (elements(lambda i, j: te.floordiv(INTEGERS[i, j], 3)), True),
        (elements(lambda i, j: (FLOATS[i, j] > 0.5).astype("int32")), True),
        (elements(lambda i, j: te.max(FLOATS[i, j], 0.0).astype("int32")), True),
        (topi.argmax(FLOATS, axis=1), True),
        (elements(lambda i, j: (FLOATS[i, j] * 0.5).astype("int8")), False),
        (elements(lambda i, j: (FLOATS[i, j] / 3.0).astype("int8")), False),
        (elements(lambda i, j: te.exp(FLOATS[i, j]).astype("int32")), False),
        (topi.argmax(topi.nn.softmax(FLOATS), axis=1), False),
    ],
)
def test_integers_are_exact_unless_floats_are_computed(out, exact):
    inputs = [t for t in (INTEGERS, FLOATS) if t in _inputs(out)]
    *given, found = arguments(*inputs, out)
    assert found.exact == exact
    assert [a.exact for a in given] == [exact and "int" in a.dtype for a in given]


def test_floats_are_never_exact():
    *_, found = arguments(INTEGERS, elements(lambda i, j: INTEGERS[i, j].astype("float32")))
    assert not found.exact


def test_a_constant_shift_of_sums_is_known():
    k = te.reduce_axis((0, 4), "k")
    sums = te.compute((6,), lambda i: te.sum(INTEGERS[i, k], axis=k), name="sums")
    out = te.compute((6,), lambda i: (sums[i] >> 9).astype("int8"), name="out")
    assert {a.shifted for a in arguments(INTEGERS, out)} == {9}
    assert {a.shifted for a in arguments(INTEGERS, sums)} == {0}


def _inputs(tensor: Any) -> set[Any]:
    found: set[Any] = set()
    waiting = [tensor]
    while waiting:
        tensor = waiting.pop()
        waiting += list(tensor.op.input_tensors)
        found |= {tensor} if isinstance(tensor.op, te.PlaceholderOp) else set()
    return found
