"""The knobs of a packed convolution, those of VTA's old template, and where they may stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

from tvmtune.errors import TvmtuneError
from tvmtune_vta.config import Config
from tvmtune_vta.workload import Convolution

THREADS = (1, 2)
"""Of outputs, and of rows: how many slots of on-chip memory take turns."""


@dataclass(frozen=True)
class Knobs:
    """Extents of the tile that one slot computes at once, in blocks of the GEMM core (b, ci, co) and
    pixels (h, w), for a transposed convolution squares of its strides; and the slots, by blocks of
    output channels and by rows."""

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


class Misfit(TvmtuneError):
    """A configuration of the knobs that the hardware has no room for."""


def extents(conv: Convolution, config: Config) -> dict[str, int]:
    """What each tile has to divide: a tile of output channels lies within a group."""
    rows, columns = conv.units
    return {
        "tile_b": conv.batch // config.batch,
        "tile_h": rows,
        "tile_w": columns,
        "tile_ci": conv.in_channels // conv.groups // config.block,
        "tile_co": conv.out_channels // conv.groups // config.block,
    }


def options(conv: Convolution, config: Config) -> dict[str, tuple[int, ...]]:
    """The values of each knob, by its name."""
    conv.check(config)
    found = {
        name: tuple(d for d in range(1, extent + 1) if extent % d == 0)
        for name, extent in extents(conv, config).items()
    }
    return found | {"oc_nthread": THREADS, "h_nthread": THREADS}


def check_tiles(knobs: Knobs, conv: Convolution, config: Config) -> None:
    """Raise :class:`Misfit` for tiles, or slots of them, that do not divide the workload."""
    whole = extents(conv, config)
    for name, extent in whole.items():
        tile = getattr(knobs, name)
        if tile < 1 or extent % tile:
            raise Misfit(f"{name}={tile} does not divide {extent}")
    for name, tile_name in (("oc_nthread", "tile_co"), ("h_nthread", "tile_h")):
        count, tiles = getattr(knobs, name), whole[tile_name] // getattr(knobs, tile_name)
        if count < 1 or tiles % count:
            raise Misfit(f"{name}={count} does not divide the {tiles} tiles that there are")


def points(conv: Convolution, config: Config) -> Iterator[Knobs]:
    """All whose tiles divide the workload, the last knob fastest; some may still be misfits."""
    import itertools

    known = options(conv, config)
    for values in itertools.product(*(known[f.name] for f in fields(Knobs))):
        knobs = Knobs(*values)
        try:
            check_tiles(knobs, conv, config)
        except Misfit:
            continue
        yield knobs
