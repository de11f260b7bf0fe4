"""The kernel that measures a CPU's peak rate."""

from __future__ import annotations

import re

import pytest
import tvm

from tvmtune.cpu_features import vector_unit
from tvmtune.measure import peak


@pytest.mark.parametrize(
    ("mcpu", "register"),
    [
        ("skylake-avx512", "zmm"),
        ("haswell", "ymm"),
        ("ivybridge", "ymm"),  # without FMA
        ("x86-64-v2", "xmm"),
    ],
)
def test_its_sums_stay_in_registers(mcpu, register):
    """The loop over products adds to all sums, without any access to the stack."""
    target = {"kind": "llvm", "mcpu": mcpu}
    unit = vector_unit(target)
    compiled = tvm.compile(peak.kernel(unit, blocks=2), tvm.target.Target(target))
    blocks = re.split(r"^\.LBB\S+:|^\tj\w+", compiled.mod.inspect_source("asm"), flags=re.M)
    (loop,) = [block for block in blocks if len(re.findall(r"vfn?madd|mulps", block)) >= unit.sums]
    assert len(re.findall(rf"(vfmadd\d+|add)ps.*%{register}", loop)) >= unit.sums
    assert "rsp" not in loop
