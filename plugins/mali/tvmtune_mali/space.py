"""Schedules that suit Mali GPUs: tiles in registers, 128-bit accesses, no local memory for products.

Arm's OpenCL guide for Mali says that local memory is mapped to main memory, so that copying operands
there costs and gains nothing, and asks for vectors of 128 bits. TVM's rules for GPUs do the opposite:
local memory for every operand, no vectors. They are a further implementation, as OpenCL's other
devices may be of another mind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.graph.gpu_spaces import DrawnSpace, RegisterTiles, is_product, vector_lanes

if TYPE_CHECKING:
    import tvm

    from tvmtune.types import Device

SHARED = "shared"
"""The name of :class:`SharedTiles` among a task's implementations."""


class MaliTiles(RegisterTiles):
    """Tiles in registers; padding has a kernel of its own."""

    inline_padding = False


class SharedTiles(DrawnSpace):
    """TVM's rules for GPUs, as they are: operands in local memory."""

    inline_padding = False


def tiles(mod: tvm.IRModule, device: Device) -> MaliTiles:
    """The space for a workload."""
    return MaliTiles(device.target, vector_lanes(mod, device))


def shared(mod: tvm.IRModule, device: Device) -> SharedTiles | None:
    """The space for workloads that :class:`MaliTiles` treats otherwise."""
    return SharedTiles(device.target, vector_lanes(mod, device)) if is_product(mod) else None
