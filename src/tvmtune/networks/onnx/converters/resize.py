"""Converter of Resize and Upsample: a weighted sum of a few rows, axis by axis.

Formulas: the operator's page of the ONNX standard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks import interpolation
from tvmtune.networks.interpolation import Taps
from tvmtune.networks.onnx.converters.request import Converter, Node, optional
from tvmtune.networks.relax_operators import dtype, shape

_IMPORTED = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")
"""Coordinate modes that the importer supports, besides tf_crop_and_resize, which is no weighted sum."""

_TRUNCATED = ("int8", "int32", "uint8")
"""Integers of which ONNX Runtime truncates the linear interpolation. Others, and the cubic one, are
rounded as by onnx's evaluator."""


def resize(node: Node) -> Any:
    """The importer is wrong on or refuses scales that do not divide the extents, aspect-ratio policies,
    some coordinate modes, named axes, interpolated integers, and opsets before 11. Other cases go to
    the importer."""
    x, mode = node.inputs[0], node.text("mode", "nearest")
    kind = dtype(x)
    if mode == "nearest" or not kind.startswith(("int", "uint")):
        return _resized(node, x)
    wide = "float32" if kind.endswith(("int8", "int16")) else "float64"
    result = node.emit(_resized(node, node.op.astype(x, wide)))
    if mode == "cubic" or kind not in _TRUNCATED:
        limits = np.iinfo(kind)
        result = node.op.minimum(node.op.round(result), float(limits.max))
        result = node.op.maximum(result, float(limits.min))
    return relax.op.astype(result, kind)


def _resized(node: Node, x: Any) -> Any:
    """The node's result for another first input."""
    roi, scales, sizes = (node.input(position) for position in range(1, 4))
    old = node.opset < 11
    if old:  # Upsample, and the first version of Resize
        roi, scales, sizes = None, roi, None
        if scales is None:
            scales = relax.const(np.array(node.attrs["scales"], "float32"), "float32")
    defaults = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric" if old else "half_pixel",
        "nearest_mode": "floor" if old else "round_prefer_floor",
        "keep_aspect_ratio_policy": "stretch",
    }
    texts = {name: node.text(name, default) for name, default in defaults.items()}
    if texts["mode"] == "bilinear":
        texts["mode"] = "linear"
    plan = _plan(
        shape(x),
        node.attrs | texts,
        scales=optional(scales, "scales"),
        sizes=optional(sizes, "sizes"),
        roi=optional(roi, "roi"),
    )
    if plan is None:
        node.attrs.update({name: text.encode() for name, text in texts.items()})
        empty = [None if v is None or 0 in shape(v) else v for v in (roi, scales, sizes)]
        return node.standard(x, *empty, operator="Resize")
    return interpolation.weighted_sum(node.emit, x, plan)


def _plan(
    extents: Sequence[int],
    attrs: Mapping[str, Any],
    *,
    scales: np.ndarray | None,
    sizes: np.ndarray | None,
    roi: np.ndarray | None,
) -> dict[int, Taps] | None:
    """Taps for each axis that changes; None where TVM's own operator is right.

    Raises ValueError for what neither supports.
    """
    rank = len(extents)
    mode, coordinates = attrs["mode"], attrs["coordinate_transformation_mode"]
    axes = [int(axis) % rank for axis in attrs.get("axes", range(rank))]
    scales = None if scales is None or not scales.size else scales.astype("float64")
    sizes = None if sizes is None or not sizes.size else sizes
    if scales is None and sizes is None:
        raise ValueError("its scales and sizes must be constant")
    factor = dict.fromkeys(range(rank), 1.0)
    result = dict(enumerate(extents))
    if scales is not None:
        factor |= {axis: float(scale) for axis, scale in zip(axes, scales, strict=True)}
        result = {axis: math.floor(extents[axis] * factor[axis]) for axis in range(rank)}
    else:
        assert sizes is not None
        result |= {axis: int(size) for axis, size in zip(axes, sizes, strict=True)}
        policy = attrs["keep_aspect_ratio_policy"]
        if policy != "stretch":
            ratios = [result[axis] / extents[axis] for axis in axes]
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            result |= {axis: math.floor(ratio * extents[axis] + 0.5) for axis in axes}
            factor |= dict.fromkeys(axes, ratio)
        else:
            factor = {axis: result[axis] / extents[axis] for axis in range(rank)}
    changed = [axis for axis in range(rank) if result[axis] != extents[axis] or factor[axis] != 1.0]
    plain = (
        3 <= rank <= 5
        and not set(changed) & {0, 1}
        and axes == list(range(rank))
        and attrs["keep_aspect_ratio_policy"] == "stretch"
    )
    if attrs.get("antialias", 0) and any(factor[axis] < 1 for axis in changed):
        raise ValueError("antialias is not supported when an axis becomes shorter")
    if coordinates == "tf_crop_and_resize":
        if plain and roi is not None:
            return None
        raise ValueError("tf_crop_and_resize is supported for all axes and a constant roi only")
    exact = all(result[axis] == extents[axis] * factor[axis] for axis in changed)
    cornered = coordinates == "align_corners" and any(result[axis] == 1 for axis in changed)
    if plain and exact and not cornered and coordinates in _IMPORTED:
        return None
    return {axis: _taps(mode, extents[axis], result[axis], factor[axis], attrs) for axis in changed}


def _taps(mode: str, before: int, after: int, factor: float, attrs: Mapping[str, Any]) -> Taps:
    x = _origins(attrs["coordinate_transformation_mode"], before, after, factor)
    if mode == "nearest":
        return interpolation.nearest(_nearest(attrs["nearest_mode"], x), before)
    if mode == "linear":
        return interpolation.linear(x, before)
    if mode == "cubic":
        return interpolation.cubic(
            x,
            before,
            alpha=attrs.get("cubic_coeff_a", interpolation.ALPHA),
            exclude_outside=bool(attrs.get("exclude_outside", 0)),
        )
    raise ValueError(f"the mode '{mode}' is not known")


def _origins(coordinates: str, before: int, after: int, factor: Any) -> np.ndarray:
    """The input coordinate of each position of the result."""
    # In float32, as all runtimes do: just below an integer and exactly at it are different rows.
    x, factor = np.arange(after, dtype="float32"), np.float32(factor)
    if coordinates == "asymmetric":
        return x / factor
    if coordinates == "align_corners":
        return x * ((before - 1) / (after - 1) if after > 1 else 0.0)
    if coordinates == "tf_half_pixel_for_nn":
        return (x + 0.5) / factor
    if coordinates == "pytorch_half_pixel" and after == 1:
        return np.zeros(1)
    if coordinates == "half_pixel_symmetric":
        offset = before / 2 * (1 - after / (factor * before))
        return offset + (x + 0.5) / factor - 0.5
    if coordinates in ("half_pixel", "pytorch_half_pixel"):
        return (x + 0.5) / factor - 0.5
    raise ValueError(f"the coordinate_transformation_mode '{coordinates}' is not known")


def _nearest(mode: str, x: np.ndarray) -> np.ndarray:
    if mode == "floor":
        return np.floor(x)
    if mode == "ceil":
        return np.ceil(x)
    if mode == "round_prefer_ceil":
        return np.floor(x + 0.5)
    return np.ceil(x - 0.5)


CONVERTERS: dict[str, Converter] = {
    "Resize": resize,
    "Upsample": resize,
}
