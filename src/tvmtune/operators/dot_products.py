"""Dot-product instructions of x86, for 16 outputs: four products of bytes each with AVX512-VNNI, two of
bfloat16 with AVX512-BF16."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from tvmtune import cpu_features

BYTES = "dot_16x4_vnni"
"""TVM 0.27 has this intrinsic, but passes operand types that its LLVM does not accept: no kernel with
it can be built. The one here replaces it under the same name, which TVM's schedule rules use."""
BFLOAT16 = {kind: f"tvmtune_dot_16x2_bf16_{kind}" for kind in ("bfloat16", "uint16")}
"""By what the data are stored as: bfloat16 or its bits. Weights are bits: TVM would otherwise try the
instruction for products of all kinds, whose operands it cannot read."""
_FUNCTION = "tvmtune_dot_16x2_bf16"
_CODE = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @{_FUNCTION}(<16 x float> %sums, <16 x i32> %x, <16 x i32> %w) alwaysinline {{
  %values = bitcast <16 x i32> %x to <32 x bfloat>
  %weights = bitcast <16 x i32> %w to <32 x bfloat>
  %result = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
    <16 x float> %sums, <32 x bfloat> %values, <32 x bfloat> %weights)
  ret <16 x float> %result
}}
"""
"""TVM stores bfloat16 as integers and computes with it in float32, so that its own code cannot call the
instruction."""


def has_bfloat16(target: dict[str, Any]) -> bool:
    """Whether a target has AVX512-BF16."""
    return cpu_features.has(target, "avx512bf16")


@functools.cache
def register() -> None:
    """Register the intrinsics, once; TVM's must be registered already."""
    from tvm.s_tir import TensorIntrin

    bytes_ = ("uint8", "int8")
    matched = _products(4, bytes_, bytes_, "int32")
    TensorIntrin.register(BYTES, matched, _bytes(), override=True)
    for kind, name in BFLOAT16.items():
        matched = _products(2, (kind, "uint16"), ("bfloat16", "bfloat16"), "float32")
        TensorIntrin.register(name, matched, _bfloat16(kind), override=True)


def definitions(called: Collection[str]) -> list[str]:
    """In LLVM IR, of the functions here among those whose names are ``called``."""
    return [_CODE] if _FUNCTION in called else []


def _products(terms: int, stored: tuple[str, str], meant: tuple[str, str], dtype: str) -> Any:
    """The computation of an instruction, for matching: data and weights are ``stored`` in one type and
    ``meant`` in another with the same bits; sums are in ``dtype``."""
    from tvm.script import tirx as T

    (data, weights), (value, weight) = stored, meant

    @T.prim_func(s_tir=True)
    def products(
        x: T.Buffer((terms,), data, offset_factor=1),  # type: ignore[valid-type]
        w: T.Buffer((16, terms), weights, offset_factor=1),  # type: ignore[valid-type]
        sums: T.Buffer((16,), dtype, offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:16], x[0:terms], w[0:16, 0:terms])
            T.writes(sums[0:16])
            for i in range(16):
                for k in range(terms):
                    with T.sblock("add"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        sums[vi] = sums[vi] + T.cast(
                            T.reinterpret(x[vk], dtype=value), dtype
                        ) * T.cast(T.reinterpret(w[vi, vk], dtype=weight), dtype)

    return products


def _bytes() -> Any:
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


def _bfloat16(kind: str) -> Any:
    from tvm.script import tirx as T

    pair = f"{kind}x2"

    @T.prim_func(s_tir=True)
    def instruction(
        x: T.Buffer((2,), kind, offset_factor=1),  # type: ignore[valid-type]
        w: T.Buffer((16, 2), "uint16", offset_factor=1),  # type: ignore[valid-type]
        sums: T.Buffer((16,), "float32", offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:16], x[0:2], w[0:16, 0:2])
            T.writes(sums[0:16])
            sums[T.ramp(T.int32(0), 1, 16)] = T.call_pure_extern(
                "float32x16",
                _FUNCTION,
                sums.vload([0], dtype="float32x16"),
                T.broadcast(T.reinterpret(x.vload([0], pair), dtype="int32"), 16),
                T.reinterpret(w.vload([0, 0], dtype="uint16x32"), dtype="int32x16"),
            )

    return instruction
