"""Schedules that suit Mali GPUs: tiles in registers, 128-bit accesses, no local memory for products.

Arm's OpenCL guide for Mali says that local memory is mapped to main memory, so copying operands there
gains nothing, and recommends 128-bit vectors. TVM's rules for GPUs do the opposite: local memory for
every operand, no vectors. They are an extra implementation, since other OpenCL devices may favor them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.spaces.gpu_spaces import DrawnSpace, RegisterTiles, is_product, vector_lanes

if TYPE_CHECKING:
    import tvm

    from tvmtune.types import Device

SHARED = "shared"
"""Name of :class:`SharedTiles` among a task's implementations."""
VECTOR_ACCESSES = 4
"""Number of 128-bit accesses in the longest vector: TVM supports OpenCL C's long vectors."""


class MaliTiles(RegisterTiles):
    """Tiles in registers; padding is a separate kernel."""

    inline_padding = False
    shares_sums = False
    vector_accesses = VECTOR_ACCESSES


class SharedTiles(DrawnSpace):
    """TVM's rules for GPUs, unchanged: operands in local memory."""

    inline_padding = False
    shares_sums = False
    vector_accesses = VECTOR_ACCESSES


def tiles(mod: tvm.IRModule, device: Device) -> MaliTiles:
    """The space for a workload."""
    return MaliTiles(device.target, vector_lanes(mod, device))


def shared(mod: tvm.IRModule, device: Device) -> SharedTiles | None:
    """The space for products; None for other workloads, whose schedules would be the same."""
    return SharedTiles(device.target, vector_lanes(mod, device)) if is_product(mod) else None
