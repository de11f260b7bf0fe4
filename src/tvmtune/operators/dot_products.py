"""Dot-product instructions in TensorIR: what TVM's schedule rules match, and what takes its place."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from tvmtune.dot_instructions import BFLOAT16, BYTES, DotInstruction


@functools.cache
def register() -> None:
    """Register the intrinsics, once; TVM's must be registered already."""
    from tvm.s_tir import TensorIntrin

    for each in (*BYTES, *BFLOAT16):
        TensorIntrin.register(each.name, _products(each), _call(each), override=True)


def definitions(called: Collection[str]) -> list[str]:
    """In LLVM IR, of the functions here among those whose names are ``called``."""
    functions = {each.function: each for each in (*BYTES, *BFLOAT16)}
    return [_definition(each) for name, each in functions.items() if name in called]


def _definition(instruction: DotInstruction) -> str:
    """TVM stores bfloat16 as integers and computes with it in float32, so that its own code cannot call
    such instructions."""
    scalar = {"int32": "i32", "float32": "float"}[instruction.sums]
    sums, bits = (f"<{instruction.lanes} x {kind}>" for kind in (scalar, "i32"))
    parameters = f"{sums} %sums, {bits} %x, {bits} %w"
    return f"""
{instruction.declaration.format(sums=sums)}
define {sums} @{instruction.function}({parameters}) alwaysinline {{
  %values = bitcast {bits} %x to {instruction.vector}
  %weights = bitcast {bits} %w to {instruction.vector}
  {instruction.call.format(sums=sums)}
  ret {sums} %result
}}
"""


def _products(dot: DotInstruction) -> Any:
    """The computation of an instruction, for matching."""
    from tvm.script import tirx as T

    lanes, terms, dtype = dot.lanes, dot.terms, dot.sums
    data, weights = dot.data, dot.weights
    value, weight = dot.meaning or data, dot.meaning or weights

    @T.prim_func(s_tir=True)
    def products(
        x: T.Buffer((terms,), data, offset_factor=1),  # type: ignore[valid-type]
        w: T.Buffer((lanes, terms), weights, offset_factor=1),  # type: ignore[valid-type]
        sums: T.Buffer((lanes,), dtype, offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], x[0:terms], w[0:lanes, 0:terms])
            T.writes(sums[0:lanes])
            for i in range(lanes):
                for k in range(terms):
                    with T.sblock("add"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        sums[vi] = sums[vi] + T.cast(
                            T.reinterpret(x[vk], dtype=value), dtype
                        ) * T.cast(T.reinterpret(w[vi, vk], dtype=weight), dtype)

    return products


def _call(dot: DotInstruction) -> Any:
    from tvm.script import tirx as T

    lanes, terms, dtype, function = dot.lanes, dot.terms, dot.sums, dot.function
    data, weights = dot.data, dot.weights
    values, block = f"{data}x{terms}", f"{weights}x{lanes * terms}"
    vector, bits = f"{dtype}x{lanes}", f"int32x{lanes}"

    @T.prim_func(s_tir=True)
    def instruction(
        x: T.Buffer((terms,), data, offset_factor=1),  # type: ignore[valid-type]
        w: T.Buffer((lanes, terms), weights, offset_factor=1),  # type: ignore[valid-type]
        sums: T.Buffer((lanes,), dtype, offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], x[0:terms], w[0:lanes, 0:terms])
            T.writes(sums[0:lanes])
            sums[T.ramp(T.int32(0), 1, lanes)] = T.call_pure_extern(
                vector,
                function,
                sums.vload([0], dtype=vector),
                T.broadcast(T.reinterpret(x.vload([0], values), dtype="int32"), lanes),
                T.reinterpret(w.vload([0, 0], dtype=block), dtype=bits),
            )

    return instruction
