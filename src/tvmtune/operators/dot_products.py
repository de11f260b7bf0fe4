"""int8 dot products on x86: 16 outputs, four products each, in one AVX512-VNNI instruction.

TVM 0.27 has this intrinsic, but passes operand types that its LLVM does not accept, so no kernel
with it can be built. This one replaces it under the same name, which TVM's schedule rules use.
"""

from __future__ import annotations

import functools
from typing import Any

NAME = "dot_16x4_vnni"


@functools.cache
def register() -> None:
    """Replace TVM's intrinsic, which must be registered already; once."""
    from tvm.s_tir import TensorIntrin

    TensorIntrin.register(NAME, _products(), _instruction(), override=True)


def _products() -> Any:
    """The computation of the instruction, for matching."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def products(
        x: T.Buffer((4,), "uint8", offset_factor=1),  # type: ignore[valid-type]
        w: T.Buffer((16, 4), "int8", offset_factor=1),  # type: ignore[valid-type]
        sums: T.Buffer((16,), "int32", offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:16], x[0:4], w[0:16, 0:4])
            T.writes(sums[0:16])
            for i in range(16):
                for k in range(4):
                    with T.sblock("add"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        sums[vi] = sums[vi] + T.cast(x[vk], "int32") * T.cast(w[vi, vk], "int32")

    return products


def _instruction() -> Any:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def instruction(
        x: T.Buffer((4,), "uint8", offset_factor=1),  # type: ignore[valid-type]
        w: T.Buffer((16, 4), "int8", offset_factor=1),  # type: ignore[valid-type]
        sums: T.Buffer((16,), "int32", offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:16], x[0:4], w[0:16, 0:4])
            T.writes(sums[0:16])
            four = T.reinterpret(x.vload([0], "uint8x4"), dtype="int32")
            sums[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
                sums.vload([0], dtype="int32x16"),
                T.reinterpret(T.broadcast(four, 16), dtype="uint8x64"),
                w.vload([0, 0], dtype="int8x64"),
                dtype="int32x16",
            )

    return instruction
