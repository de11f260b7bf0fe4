"""Drops the taps of convolutions, the positions of their kernels, that read nothing but padding.

Where the dilation is as large as the image, only a kernel's center reads it: the 3x3 convolutions of
DeepLab's pyramid become 1x1 (Chen et al., "Rethinking Atrous Convolution for Semantic Image
Segmentation", 2017, section 3.3). Kernels that are computed, such as those of quantized networks, keep
their taps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, rebind
from tvmtune.passes.convolution_axes import Axis, axes_of, with_taps

if TYPE_CHECKING:
    import tvm


def drop(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` without such taps of constant kernels in ``main``; itself if there are none."""
    made: dict[Any, Callable[[Any], Any]] = {}
    for binding in bindings(mod):
        axes = axes_of(binding.value)
        kept = [_kept(axis) for axis in axes]
        if any(len(taps) < axis.taps for taps, axis in zip(kept, axes, strict=True)):
            made[binding.var] = functools.partial(_trimmed, binding.value, axes, kept)
    return rebind(mod, made)


def _kept(axis: Axis) -> range:
    """The taps without those at both ends that read padding only."""
    read = [tap for tap in range(axis.taps) if axis.reading(tap)]
    if not read:
        return range(axis.taps)
    # What remains needs padding of at least 0.
    first = min(read[0], max(axis.before, 0) // axis.dilation)
    last = max(read[-1], axis.taps - 1 - max(axis.after, 0) // axis.dilation)
    return range(first, last + 1)


def _trimmed(call: Any, axes: list[Axis], kept: list[range], mutator: Any) -> Any:
    trimmed = [
        replace(
            axis,
            taps=len(taps),
            dilation=axis.dilation if len(taps) > 1 else 1,
            before=axis.before - taps.start * axis.dilation,
            after=axis.after - (axis.taps - taps.stop) * axis.dilation,
        )
        for axis, taps in zip(axes, kept, strict=True)
    ]
    data = mutator.visit_expr(call.args[0])
    return with_taps(call, data, trimmed, [slice(taps.start, taps.stop) for taps in kept])
