"""Which dtypes are worth comparing on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune import dot_instructions
from tvmtune.errors import UsageError

if TYPE_CHECKING:
    from tvmtune.tasks.plan import Plan

AUTO = "auto"
"""The word that stands for all of them on the command line."""
FLOAT32, FLOAT16, BFLOAT16, INT8 = "float32", "float16", "bfloat16", "int8"


def to_compare(plan: Plan) -> tuple[list[str], list[str]]:
    """The dtypes besides float32, and notes on those that are left out; ``plan`` is that of the float32
    network.

    Raises :class:`UsageError` if the network does not compute in float32 there.
    """
    dtype = plan.prepared.network.source.get("dtype", FLOAT32)
    if any(arg.dtype == INT8 for task in plan.tasks for arg in task.args) or dtype != FLOAT32:
        raise UsageError(
            f"--dtype {AUTO} compares with float32, in which {plan.network.name} does not compute on "
            f"the target {plan.device.backend}: omit it"
        )
    if plan.device.runtime != "cpu":
        return [FLOAT16], []
    dtypes, notes = [], []
    if dot_instructions.for_bfloat16(plan.device.target):
        dtypes.append(BFLOAT16)
    else:
        notes.append(f"{BFLOAT16} is left out: {plan.device.model} has no instructions for it")
    if plan.backend.calibrates:
        dtypes.append(INT8)
    return dtypes, notes
