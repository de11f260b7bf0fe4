"""float32 is rounded to bfloat16 by an instruction where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from tvmtune.machine import cpu_features
from tvmtune.operators import cpu_pipeline

SIZE = 64
INSTRUCTION = {"sapphirerapids": True, "icelake-server": False, "haswell": False}
"""For vectors."""


def compiled(target: dict[str, str], lanes: int) -> tvm.runtime.Executable:
    x = te.placeholder((SIZE,), "float32", "x")
    y = te.compute((SIZE,), lambda i: (x[i] + x[i]).astype("bfloat16"), name="y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    sch.vectorize(sch.split(loop, [None, lanes])[1])
    pipeline = cpu_pipeline.pipeline_for(target)
    return tvm.compile(sch.mod, tvm.target.Target(target), tir_pipeline=pipeline)


@pytest.mark.parametrize("lanes", [1, 8, 32])
@pytest.mark.parametrize("mcpu", INSTRUCTION)
def test_rounding_is_to_nearest_and_ties_are_to_even(mcpu, lanes):
    target = {"kind": "llvm", "mcpu": mcpu}
    library = compiled(target, lanes)
    assembly = library.mod.inspect_source("asm")
    assert ("vcvtne" in assembly) == (INSTRUCTION[mcpu] and lanes > 1)
    if not cpu_features.can_run(target, "", ["bfloat16"]):
        return
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, SIZE, dtype=np.uint32) & 0xBFFFFFFF | 0x20000000
    bits[:8] = (
        0x3F800000 + np.arange(8) * 0x8000
    )  # halfway between two values of bfloat16, and these
    x = bits.view("float32")
    y = tvm.runtime.empty((SIZE,), "bfloat16")
    x[8:12] = [np.inf, -np.inf, 3.39e38, -3.39e38]
    library["main"](tvm.runtime.tensor(x), y)
    with np.errstate(over="ignore"):
        doubled = (x + x).view("uint32")
    expected = (doubled + 0x7FFF + (doubled >> 16 & 1)) >> 16
    np.testing.assert_array_equal(y.numpy().view("uint16"), expected.astype("uint16"))


def test_the_greatest_of_several_values_is_not_rounded():
    x = te.placeholder((SIZE, 32), "bfloat16", "x")
    y = te.compute((32,), lambda i: te.max(x[0, i], x[1, i]), name="y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    sch.vectorize(sch.get_loops(sch.get_sblock("y"))[0])
    target = {"kind": "llvm", "mcpu": "sapphirerapids"}
    library = tvm.compile(
        sch.mod, tvm.target.Target(target), tir_pipeline=cpu_pipeline.pipeline_for(target)
    )
    assert "vcvtne" not in library.mod.inspect_source("asm")
    assert "32767" not in library.mod.inspect_source("ll")  # nor by TVM's integers


def test_arm_has_such_an_instruction_too():
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"}
    assert "bfcvt" in compiled(target, 8).mod.inspect_source("asm")


def test_vectors_keep_nan():
    target = {"kind": "llvm", "mcpu": "sapphirerapids"}
    if not cpu_features.can_run(target, "", ["bfloat16"]):
        pytest.skip("this CPU lacks AVX512-BF16")
    x = np.full(SIZE, 0x7FFFFFFF, "uint32").view("float32")
    y = tvm.runtime.empty((SIZE,), "bfloat16")
    compiled(target, 32)["main"](tvm.runtime.tensor(x), y)
    assert np.isnan((y.numpy().view("uint16").astype("uint32") << 16).view("float32")).all()
