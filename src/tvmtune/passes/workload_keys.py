"""Keys of workloads, stable between runs.

The exact key changes with anything that could change the meaning of a stored trace: the workload's
structure, TVM's version, the version of the space. The anchor key identifies only the operator that
determines the schedule, so a record survives another fusion around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.machine.package_versions import tvm_version
from tvmtune.types import digest

if TYPE_CHECKING:
    import tvm

SPACE_VERSION = 1
"""Incremented whenever the core's spaces or passes change the meaning of a trace."""


def structure(mod: tvm.IRModule) -> str:
    """TVM's structural hash, which ignores variable names."""
    from tvm.s_tir.meta_schedule.utils import shash2hex

    return str(shash2hex(mod))


def workload_key(mod: tvm.IRModule) -> str:
    """The exact key of a workload."""
    # The empty string once stood for a space: keys in logs must stay valid.
    return digest([structure(mod), tvm_version(), SPACE_VERSION, ""])


def anchor_key(mod: tvm.IRModule) -> str:
    """The key of the workload's anchor block: operator, loop extents, buffers.

    A workload without an anchor (pure element-wise code) is its own anchor.
    """
    import tvm_ffi
    from tvm.s_tir.analysis import find_anchor_sblock

    block = find_anchor_sblock(mod)
    if block is None:
        return digest(["whole", structure(mod)])

    def buffers(regions: object) -> list[object]:
        return [
            [[str(e) for e in r.source.shape], str(r.source.dtype)]
            for r in regions  # type: ignore[attr-defined]
        ]

    loops = [[str(v.dom.extent), int(v.iter_type)] for v in block.iter_vars]
    return digest(
        [
            block.name_hint,
            loops,
            buffers(block.reads),
            buffers(block.writes),
            # what the block computes, strides and dilation included; variables count by position
            tvm_ffi.structural_hash(block, map_free_vars=True),
            tvm_version(),
            SPACE_VERSION,
        ]
    )
