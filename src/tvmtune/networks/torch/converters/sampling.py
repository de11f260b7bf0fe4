"""Sampling at the positions of a grid, whose axes the importer takes in another order, and resizes to
other than multiples of a size, for which it takes other pixels."""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax

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


def _upsample_nearest2d(node: Any, importer: Any) -> Any:
    """Data (n, c, h, w) at the rows and columns that PyTorch takes, given the sizes or factors."""
    extents = node.args[0].meta["val"].shape[2:]
    grids = torch.meshgrid(*(torch.arange(float(n)) for n in extents), indexing="ij")
    resized = [node.target(grid[None, None], *node.args[1:], **node.kwargs)[0, 0] for grid in grids]
    places = [resized[0][:, 0].long(), resized[1][0].long()]
    if all(_repeats(each, extent) for each, extent in zip(places, extents, strict=True)):
        return importer._upsample_nearest2d(node)
    op, data = Operators(importer.block_builder), importer.env[node.args[0]]
    for axis, each in enumerate(places, 2):
        data = op.take(data, relax.const(each.numpy(), "int64"), axis=axis)
    return data


def _repeats(places: torch.Tensor, extent: int) -> bool:
    """Whether these are all places of an axis, each as many times."""
    times = len(places) // extent
    return torch.equal(places, torch.arange(extent).repeat_interleave(times))


CONVERTERS = {
    "grid_sampler_2d.default": _grid_sampler_2d,
    "upsample_nearest2d.vec": _upsample_nearest2d,
}
