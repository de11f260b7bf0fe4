"""Resizing (``interpolate``, ``nn.Upsample``), whole: PyTorch decomposes most modes into one lookup for
each of up to 16 taps.

The importer rounds to the nearest pixel where PyTorch rounds down, takes the scale from the sizes even
if the program gives it, and ignores antialiasing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from tvmtune.networks import interpolation
from tvmtune.networks.interpolation import Taps
from tvmtune.networks.relax_operators import Operators, dtype, shape
from tvmtune.networks.torch.converters.arithmetic import dtype_name
from tvmtune.networks.torch.program import arguments

_aten = torch.ops.aten

_METHODS = {
    _aten.upsample_nearest1d.vec: "nearest",
    _aten.upsample_nearest2d.vec: "nearest",
    _aten.upsample_nearest3d.vec: "nearest",
    _aten._upsample_nearest_exact1d.vec: "nearest-exact",
    _aten._upsample_nearest_exact2d.vec: "nearest-exact",
    _aten._upsample_nearest_exact3d.vec: "nearest-exact",
    _aten.upsample_linear1d.vec: "linear",
    _aten.upsample_bilinear2d.vec: "linear",
    _aten.upsample_trilinear3d.vec: "linear",
    _aten.upsample_bicubic2d.vec: "cubic",
}

_ANTIALIASED = {
    _aten._upsample_bilinear2d_aa.default: "linear",
    _aten._upsample_bicubic2d_aa.default: "cubic",
}

_ANTIALIASED_ALPHA = -0.5
"""The parameter of Keys' kernel, with which PyTorch antialiases."""

_IMAGE_DTYPES = ("float32", "float16", "bfloat16")
"""For which TVM's operator is exact: it computes in float32."""

WHOLE = frozenset(_METHODS)
"""Operators that are to be converted as they are, not decomposed."""


def _resize(node: Any, importer: Any) -> Any:
    """By TVM's operator where that computes the same, else as a sum of rows for each axis."""
    given, method = arguments(node), _METHODS[node.target]
    op, x = Operators(importer.block_builder), importer.env[node.args[0]]
    cornered = bool(given.get("align_corners"))
    before, after = shape(x)[2:], list(node.meta["val"].shape[2:])
    scales = given["scale_factors"] or [None] * len(after)
    kind, repeats = _computed(node), _repeats_rows(node)
    axes = [
        (old, new, _step(method, old, new, scale, cornered, repeats))
        for old, new, scale in zip(before, after, scales, strict=True)
    ]
    taps = [_taps(method, *axis, cornered, np.dtype(kind)) for axis in axes]
    attributes = _of_whole_images(method, axes, taps, cornered)
    if attributes and len(after) == 2 and dtype(x) in _IMAGE_DTYPES:
        return op.image.resize2d(x, tuple(after), **attributes)
    plan = {2 + i: taps[i] for i, (old, new, step) in enumerate(axes) if old != new or step != 1}
    if method.startswith("nearest"):
        return interpolation.weighted_sum(importer.block_builder.emit, x, plan)
    result = interpolation.weighted_sum(importer.block_builder.emit, op.astype(x, kind), plan)
    return op.astype(result, dtype(x))


def _computed(node: Any) -> str:
    """The dtype in which PyTorch computes values between pixels, and where they are."""
    kind = node.meta["val"].dtype
    if not (kind.is_floating_point or _METHODS.get(node.target, "").startswith("nearest")):
        raise NotImplementedError(
            f"interpolation of {dtype_name(kind)} is not supported; convert it to float32 before"
        )
    return "float64" if kind is torch.float64 else "float32"


def _ratio(before: int, after: int, scale: float | None) -> float:
    return 1 / scale if scale else before / after


def _repeats_rows(node: Any) -> bool:
    """Whether PyTorch copies or doubles rows of nearest pixels whatever the scale: in one of its two
    kernels, that of small images and of those whose channels are last."""
    image, extents = node.args[0].meta["val"], node.meta["val"].shape[2:]
    if len(extents) == 2 and sum(extents) <= 128:
        return True
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(len(extents))
    return bool(last and image.shape[1] > 3 and image.is_contiguous(memory_format=last))


def _step(
    method: str, before: int, after: int, scale: float | None, cornered: bool, repeats: bool
) -> float:
    """How far apart two positions of the result are in the input; ``repeats`` as of
    :func:`_repeats_rows`."""
    repeated = method == "nearest" and repeats
    if after == before and (method == "linear" or repeated):
        return 1.0
    if after == 2 * before and repeated:
        return 0.5
    if cornered:
        return (before - 1) / (after - 1) if after > 1 else 0.0
    return _ratio(before, after, scale)


def _taps(
    method: str, before: int, after: int, step: float, cornered: bool, kind: np.dtype
) -> Taps:
    """As in PyTorch's UpSample.h, in its dtype: just below an integer and exactly at it are different
    rows."""
    if method.startswith("nearest"):  # of any dtype
        kind = np.dtype("float32")
    position, step = np.arange(after, dtype=kind), kind.type(step)
    if method == "nearest":
        return interpolation.nearest(np.floor(position * step), before)
    centered = (position + 0.5) * step - 0.5
    if method == "nearest-exact":
        return interpolation.nearest(np.floor(np.maximum(centered, 0) + 0.5), before)
    x = position * step if cornered else centered
    if method == "cubic":
        return interpolation.cubic(x, before)
    return interpolation.linear(np.maximum(x, 0), before)


def _of_whole_images(
    method: str,
    axes: Sequence[tuple[int, int, float]],
    taps: Sequence[Taps],
    cornered: bool,
) -> dict[str, Any] | None:
    """With which attributes TVM's operator computes the same; None if it does not."""
    if method.startswith("nearest"):
        repeats = all(
            after % before == 0 and (places[0] == np.arange(after) // (after // before)).all()
            for (before, after, _), (places, _) in zip(axes, taps, strict=True)
        )
        if not repeats:
            return None
        return {
            "method": "nearest_neighbor",
            "coordinate_transformation_mode": "asymmetric",
            "rounding_method": "floor",
        }
    if cornered:  # TVM divides by the distance between the first and the last pixel
        same, coordinates = all(after > 1 for _, after, _ in axes), "align_corners"
    else:
        same = all(np.float32(step) == np.float32(before / after) for before, after, step in axes)
        coordinates = "half_pixel"
    if not same:
        return None
    return {
        "method": method,
        "coordinate_transformation_mode": coordinates,
        "cubic_alpha": interpolation.ALPHA,
    }


def _resize_antialiased(node: Any, importer: Any) -> Any:
    """As a product for each axis: where it becomes shorter, windows are as much wider."""
    given, op = arguments(node), Operators(importer.block_builder)
    if given["align_corners"]:
        raise NotImplementedError("antialias with align_corners is not supported")
    x, kind = importer.env[node.args[0]], _computed(node)
    result = op.astype(x, kind)
    for axis, scale in ((3, given["scales_w"]), (2, given["scales_h"])):
        before, after = shape(x)[axis], int(node.meta["val"].shape[axis])
        weights = _weights(_ANTIALIASED[node.target], before, after, _ratio(before, after, scale))
        if axis == 3:
            result = op.matmul(result, relax.const(weights.T.astype(kind)))
        else:
            result = op.matmul(relax.const(weights.astype(kind)), result)
    return op.astype(result, dtype(x))


def _weights(method: str, before: int, after: int, step: float) -> np.ndarray:
    """Weights of the rows of an axis, for each row of the result: (after, before)."""
    centers = (np.arange(after) + 0.5) * step
    distances = np.abs(np.arange(before) + 0.5 - centers[:, None]) / max(step, 1)
    if method == "linear":
        weights = np.maximum(1 - distances, 0)
    else:
        weights = interpolation.keys_kernel(np.minimum(distances, 2), _ANTIALIASED_ALPHA)
    return weights / weights.sum(axis=1, keepdims=True)


CONVERTERS = {
    **{target.__name__: _resize for target in _METHODS},
    **{target.__name__: _resize_antialiased for target in _ANTIALIASED},
}
