"""Sampling at the positions of a grid, whose axes the importer takes in another order."""

from __future__ import annotations

from typing import Any

from tvm import relax

_METHODS = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


def _grid_sampler_2d(node: Any, importer: Any) -> Any:
    """Data (n, c, h, w) at the x and y of a grid (n, h', w', 2)."""
    data, grid, method, padding, aligned = node.args
    emit = importer.block_builder.emit
    positions = emit(relax.op.permute_dims(importer.env[grid], [0, 3, 1, 2]))
    sampled = relax.op.image.grid_sample(
        importer.env[data],
        positions,
        method=_METHODS[method],
        padding_mode=_PADDINGS[padding],
        align_corners=bool(aligned),
    )
    return emit(sampled)


CONVERTERS = {"grid_sampler_2d.default": _grid_sampler_2d}
