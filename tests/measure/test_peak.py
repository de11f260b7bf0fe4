"""The kernel that measures a CPU's peak rate."""

from __future__ import annotations

import re

import pytest
import tvm

from tvmtune.measure import peak
from tvmtune.spaces.cpu_tiles import vector_unit


@pytest.mark.parametrize(
    ("mcpu", "register"), [("skylake-avx512", "zmm"), ("haswell", "ymm"), ("ivybridge", "ymm")]
)
def test_its_sums_stay_in_registers(mcpu, register):
    """The loop over products is multiply-adds of all sums, without any access to the stack."""
    target = {"kind": "llvm", "mcpu": mcpu}
    unit = vector_unit(target)
    compiled = tvm.compile(peak.kernel(unit, blocks=2), tvm.target.Target(target))
    blocks = re.split(r"^\.LBB\S+:|^\tj\w+", compiled.mod.inspect_source("asm"), flags=re.M)
    (loop,) = [block for block in blocks if len(re.findall(r"vfn?madd|vmulps", block)) >= unit.sums]
    assert len(re.findall(rf"(vfmadd\d+|vadd)ps.*%{register}", loop)) >= unit.sums
    assert "rsp" not in loop
