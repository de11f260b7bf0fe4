"""Serialization of traces and workloads: compile applies exactly what a record stores."""

from __future__ import annotations

import base64
import itertools
import zlib
from typing import TYPE_CHECKING, Any

from tvmtune import bounded
from tvmtune.passes import block_names
from tvmtune.spaces import tensor_intrinsics

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule


_LARGEST = 1 << 24
"""Bytes of a workload's JSON; the largest of the zoo has 115 KB."""
SAMPLING = (
    "SamplePerfectTile",
    "SamplePartitionedTile",
    "SampleCategorical",
    "SampleComputeLocation",
)
"""Kinds of instructions that sample a decision."""


def to_json(sch: Schedule) -> Any:
    """The schedule's trace in plain JSON types, post-processors included."""
    return plain(sch.trace.simplified(remove_postproc=False).as_json())


def design(instructions: Any) -> list[Any]:
    """The instructions of a stored trace before its post-processors'."""

    def before(instruction: Any) -> bool:  # a log may hold anything
        return not (isinstance(instruction, list) and instruction[:1] == ["EnterPostproc"])

    return list(itertools.takewhile(before, instructions))


def apply(mod: tvm.IRModule, trace: Any) -> Schedule:
    """Schedule ``mod`` by a stored trace.

    Raises whatever TVM raises if the trace does not fit the workload.
    """
    from tvm.s_tir import Schedule, Trace

    tensor_intrinsics.load_named(trace[0])
    sch = Schedule(mod, error_render_level="none")
    Trace.apply_json_to_schedule(block_names.translate(mod, trace), sch)
    return sch


def store_module(mod: tvm.IRModule, level: int = 9) -> str:
    """A workload as one compact string (TVM's JSON, deflated, base64).

    ``level`` 0 does not compress: xz packs a log of many such workloads in half the space.
    """
    import tvm

    return base64.b64encode(zlib.compress(tvm.ir.save_json(mod).encode(), level)).decode()


def load_module(text: str) -> tvm.IRModule:
    """The inverse of :func:`store_module`; raises ValueError for damaged data."""
    import tvm

    return tvm.ir.load_json(bounded.inflate(base64.b64decode(text), _LARGEST).decode())


def plain(value: Any) -> Any:
    """A value of TVM's in plain JSON types."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "value") and not hasattr(value, "__len__"):  # IntImm, FloatImm, StringImm
        return plain(value.value)
    if hasattr(value, "items"):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value]
