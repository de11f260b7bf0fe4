"""Dot-product instructions in TensorIR: what TVM's schedule rules match, and what takes its place.

TVM's builder makes both functions: its parser would take 50 times as long, in every process.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator
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
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    value, weight = dot.meaning or dot.data, dot.meaning or dot.weights
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("products")
        x, w, sums = _operands(dot)
        with (
            _root_block(dot, x, w, sums),
            T.serial(dot.lanes) as i,
            T.serial(dot.terms) as k,
            T.sblock("add"),
        ):
            vi, vk = T.axis.remap("SR", [i, k])
            data = T.cast(T.reinterpret(value, x[vk]), dot.sums)
            weights = T.cast(T.reinterpret(weight, w[vi, vk]), dot.sums)
            T.buffer_store(sums, sums[vi] + data * weights, [vi])
    return builder.get()


def _call(dot: DotInstruction) -> Any:
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    lanes, block = dot.lanes, f"{dot.weights}x{dot.lanes * dot.terms}"
    vector, bits = f"{dot.sums}x{lanes}", f"int32x{lanes}"
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("instruction")
        x, w, sums = _operands(dot)
        with _root_block(dot, x, w, sums):
            data = T.reinterpret("int32", x.vload([0], f"{dot.data}x{dot.terms}"))
            weights = T.reinterpret(bits, w.vload([0, 0], block))
            before = sums.vload([0], vector)
            after = T.call_pure_extern(
                vector, dot.function, before, T.broadcast(data, lanes), weights
            )
            T.buffer_store(sums, after, [T.ramp(T.int32(0), 1, lanes)])
    return builder.get()


def _operands(dot: DotInstruction) -> tuple[Any, Any, Any]:
    """The parameters of both functions: data, weights and sums."""
    from tvm.script.ir_builder import tirx as T

    x = T.buffer((dot.terms,), dot.data, offset_factor=1)
    w = T.buffer((dot.lanes, dot.terms), dot.weights, offset_factor=1)
    sums = T.buffer((dot.lanes,), dot.sums, offset_factor=1)
    return T.arg("x", x), T.arg("w", w), T.arg("sums", sums)


@contextlib.contextmanager
def _root_block(dot: DotInstruction, x: Any, w: Any, sums: Any) -> Iterator[None]:
    """The root block, which reads and writes all of the operands."""
    from tvm.script.ir_builder import tirx as T

    with T.sblock("root"):
        every_sum = sums[0 : dot.lanes]
        T.reads(every_sum, x[0 : dot.terms], w[0 : dot.lanes, 0 : dot.terms])
        T.writes(every_sum)
        yield
