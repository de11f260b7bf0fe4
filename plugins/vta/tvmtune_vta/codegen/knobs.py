"""The tuning knobs of a packed convolution, those of VTA's original template, and their values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

from tvmtune.errors import TvmtuneError
from tvmtune_vta.codegen.workload import Convolution
from tvmtune_vta.hardware.config import Config

THREADS = (1, 2)
"""Values of ``oc_nthread`` and ``h_nthread``: how many on-chip slots take turns."""


@dataclass(frozen=True)
class Knobs:
    """Extents of the tile that one slot computes at a time, in blocks of the GEMM core (b, ci, co)
    and output pixels, or units of a transposed convolution (h, w); and the virtual threads over
    output channels and rows."""

    tile_b: int = 1
    tile_h: int = 1
    tile_w: int = 1
    tile_ci: int = 1
    tile_co: int = 1
    oc_nthread: int = 1
    h_nthread: int = 1

    @property
    def slots(self) -> int:
        return self.oc_nthread * self.h_nthread

    def to_json(self) -> dict[str, int]:
        return asdict(self)


class InfeasibleKnobs(TvmtuneError):
    """Knobs that the hardware has no room for."""


def extents(conv: Convolution, config: Config) -> dict[str, int]:
    """The extent that each tile must divide; a tile of output channels lies within one group."""
    rows, columns = conv.units
    return {
        "tile_b": conv.batch // config.batch,
        "tile_h": rows,
        "tile_w": columns,
        "tile_ci": conv.in_channels // conv.groups // config.block,
        "tile_co": conv.out_channels // conv.groups // config.block,
    }


def options(conv: Convolution, config: Config) -> dict[str, tuple[int, ...]]:
    """The values of each knob, by name."""
    conv.check(config)
    tiles = {
        name: tuple(d for d in range(1, extent + 1) if extent % d == 0)
        for name, extent in extents(conv, config).items()
    }
    return tiles | {"oc_nthread": THREADS, "h_nthread": THREADS}


def check_tiles(knobs: Knobs, conv: Convolution, config: Config) -> None:
    """Raise :class:`InfeasibleKnobs` for tiles or virtual threads that do not divide the
    workload."""
    total = extents(conv, config)
    for name, extent in total.items():
        tile = getattr(knobs, name)
        if tile < 1 or extent % tile:
            raise InfeasibleKnobs(f"{name}={tile} does not divide {extent}")
    for name, tile_name in (("oc_nthread", "tile_co"), ("h_nthread", "tile_h")):
        count, tiles = getattr(knobs, name), total[tile_name] // getattr(knobs, tile_name)
        if count < 1 or tiles % count:
            raise InfeasibleKnobs(f"{name}={count} does not divide the {tiles} tiles")


def points(conv: Convolution, config: Config) -> Iterator[Knobs]:
    """All knobs whose tiles divide the workload, the last knob fastest; some may be infeasible."""
    import itertools

    choices = options(conv, config)
    for values in itertools.product(*(choices[f.name] for f in fields(Knobs))):
        knobs = Knobs(*values)
        try:
            check_tiles(knobs, conv, config)
        except InfeasibleKnobs:
            continue
        yield knobs
