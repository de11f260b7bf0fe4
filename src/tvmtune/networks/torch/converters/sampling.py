"""Sampling at the positions of a grid, whose axes the importer takes in another order."""

from __future__ import annotations

from typing import Any

from tvmtune.networks.relax_operators import Operators, shape
from tvmtune.networks.torch.converters.arithmetic import dtype_name

_METHODS = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


def _grid_sampler_2d(node: Any, importer: Any) -> Any:
    """Data (n, c, h, w) at the x and y of a grid (n, h', w', 2), in float32 at least."""
    image, grid, method, padding, aligned = node.args
    op, dtype = Operators(importer.block_builder), dtype_name(node.meta["val"].dtype)
    computed = "float64" if dtype == "float64" else "float32"
    data = op.astype(importer.env[image], computed)
    if _PADDINGS[padding] == "reflection" and aligned:
        # TVM divides by the distance between the first and the last element.
        data = op.tile(data, [1, 1, *(2 if extent == 1 else 1 for extent in shape(data)[2:])])
    sampled = op.image.grid_sample(
        data,
        op.permute_dims(op.astype(importer.env[grid], computed), [0, 3, 1, 2]),
        method=_METHODS[method],
        padding_mode=_PADDINGS[padding],
        align_corners=bool(aligned),
    )
    return op.astype(sampled, dtype)


CONVERTERS = {"grid_sampler_2d.default": _grid_sampler_2d}
