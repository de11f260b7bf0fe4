"""Concatenations that begin with the parts of an earlier one read its result instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmtune.passes import concatenations
from tvmtune.passes.bindings import bindings, operator_of

SHAPE = (2, 3, 4)


def program(*chosen: tuple[str, int]) -> tvm.IRModule:
    """The sums of concatenations of some of the inputs a, b, c and d, each along an axis."""
    inputs = {name: relax.Var(name, relax.TensorType(SHAPE, "float32")) for name in "abcd"}
    builder = relax.BlockBuilder()
    with builder.function("main", list(inputs.values())):
        with builder.dataflow():
            sums = []
            for names, axis in chosen:
                parts = [inputs[name] for name in names]
                whole = builder.emit(relax.op.concat(parts, axis))
                sums.append(builder.emit(relax.op.sum(builder.emit(relax.op.exp(whole)))))
            output = builder.emit_output(relax.Tuple(sums))
        builder.emit_func_output(output)
    return builder.get()


def numbers_of_parts(mod: tvm.IRModule) -> list[int]:
    return [
        len(binding.value.args[0].fields)
        for binding in bindings(mod)
        if operator_of(binding.value) == "concat"
    ]


def results(mod: tvm.IRModule) -> list[Any]:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(SHAPE).astype("float32") for _ in "abcd"]
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return [each.numpy() for each in machine["main"](*map(tvm.runtime.tensor, arrays))]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("chosen", "parts"),
    [
        ([("ab", 1), ("abc", 1), ("abcd", 1)], [2, 2, 2]),
        ([("ab", 1), ("abcd", 1)], [2, 3]),
        ([("abcd", 1), ("ab", 1)], [4, 2]),  # the longer one comes first
        ([("ab", 1), ("abc", 0)], [2, 3]),
        ([("ab", 1), ("bac", 1)], [2, 3]),
        ([("ab", 1), ("cab", 1)], [2, 3]),
        ([("aa", 1), ("aaa", 1)], [2, 2]),
    ],
)
def test_only_the_parts_after_an_earlier_result_are_added(chosen, parts):
    mod = program(*chosen)
    shared = concatenations.share(mod)
    assert numbers_of_parts(shared) == parts
    for got, wanted in zip(results(shared), results(mod), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_program_with_nothing_to_share_stays_as_it_is():
    mod = program(("ab", 1), ("cd", 1))
    assert concatenations.share(mod) is mod


def test_empty_parts_are_left_out():
    full = relax.Var("full", relax.TensorType((2, 3), "float32"))
    empty = relax.Var("empty", relax.TensorType((2, 0), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [full, empty]):
        with builder.dataflow():
            first = builder.emit(relax.op.concat([full, empty], 1))
            second = builder.emit(relax.op.concat([empty, full, empty, full], 1))
            output = builder.emit_output(relax.Tuple([first, second]))
        builder.emit_func_output(output)
    assert numbers_of_parts(concatenations.drop_empty(builder.get())) == [2]
