"""A rough cost estimate that ranks knobs without generating programs."""

from __future__ import annotations

from tvmtune_vta.codegen.knobs import InfeasibleKnobs, Knobs
from tvmtune_vta.codegen.tiling import Tiling
from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.hardware.config import Config, Memory


def estimate_cycles(conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config) -> float:
    """A rough estimate in cycles, to rank knobs without generating a program: the port's work and
    the core's, which overlap if there are two slots. Infinite for infeasible knobs."""
    try:
        tiling = Tiling(conv, epilogue, knobs, config)
    except InfeasibleKnobs:
        return float("inf")
    down, across = conv.units
    tiles = down // knobs.tile_h * (across // knobs.tile_w) * (conv.batch // config.batch)
    tiles = tiles // knobs.tile_b * (conv.out_channels // config.block // knobs.tile_co)
    chunks = conv.in_channels // conv.groups // config.block // knobs.tile_ci
    inputs = tiling.inp * config.element_bytes(Memory.INP) / knobs.oc_nthread
    weights = tiling.wgt * config.element_bytes(Memory.WGT) / knobs.h_nthread
    rows = knobs.tile_ci * tiling.rows_in / knobs.oc_nthread + knobs.tile_co / knobs.h_nthread
    # 8 bytes per cycle, and 8 cycles per row
    loads = tiles * chunks * ((inputs + weights) / 8 + 8 * rows)
    stores = tiles * (tiling.acc * config.element_bytes(Memory.OUT) / 8 + 8 * tiling.rows_out)
    # a reset takes 1 cycle, and bias, shift and two bounds take 2 each
    cycles = chunks * knobs.tile_ci * tiling.taps / len(tiling.phases) + 9
    core = tiles * tiling.acc * cycles
    port = loads + stores
    return max(core, port) + (min(core, port) if knobs.slots == 1 else 0.05 * port)
