"""Zeros that are put around images by an operator become the padding of the convolution behind it.

Keras, and ports of TensorFlow's networks to PyTorch, pad by operators. In quantized networks, pads
stand between a dequantize and a quantize with the same parameters.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes.bindings import bindings, operator_of, rebind
from tvmtune.passes.constants import constant_value
from tvmtune.passes.convolution_axes import CONVOLUTIONS, remade

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import tvm


def fold(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with such convolutions of ``main``; itself if there are none."""
    values = {binding.var: binding.value for binding in bindings(mod)}
    made: dict[Any, Callable[[Any], Any]] = {}
    for variable, call in values.items():
        if operator_of(call) not in CONVOLUTIONS:
            continue
        pad = _pad_before(call.args[0], values)
        padding = None if pad is None else _padding(call, pad)
        if padding is not None:
            made[variable] = partial(_padded, call, pad, padding)
    return rebind(mod, made)


def _pad_before(data: Any, values: Mapping[Any, Any]) -> Any:
    """The pad that makes the data of a convolution, or its dequantized data; None if there is none."""
    call = values.get(data)
    if _pads_zeros(call):
        return call
    steps: list[Any] = [call]
    for operator in ("dequantize", "quantize"):
        if operator_of(steps[-1]) != operator:
            return None
        steps.append(values.get(steps[-1].args[0]))
    dequantize, quantize, pad = steps
    if not _pads_zeros(pad):
        return None
    source: Any = values.get(pad.args[0])
    same = operator_of(source) == "dequantize" and all(
        _same(dequantize, each) for each in (quantize, source)
    )
    return pad if same and source.args[0].ty.dtype == quantize.ty.dtype else None


def _pads_zeros(call: Any) -> bool:
    if operator_of(call) != "nn.pad" or "float" not in str(call.ty.dtype):
        return False
    attrs = call.attrs
    return str(attrs.pad_mode) == "constant" and float(attrs.pad_value) == 0.0


def _same(one: Any, other: Any) -> bool:
    """Whether two calls of quantize or dequantize have the same scale and zero point for all values."""
    for pair in zip(one.args[1:], other.args[1:], strict=True):
        left, right = (constant_value(each) for each in pair)
        if left is None or right is None or left.size != 1 or not np.array_equal(left, right):
            return False
    return True


def _padding(call: Any, pad: Any) -> list[int] | None:
    """That of the convolution with the pad's; None if that pads the batch or the channels, or drops
    pixels where the convolution adds zeros."""
    layout, own = str(call.attrs.data_layout), [int(n) for n in call.attrs.padding]
    widths = [int(n) for n in pad.attrs.pad_width]
    around = {letter: widths[2 * i : 2 * i + 2] for i, letter in enumerate(layout)}
    spatial = [letter for letter in layout if letter in "DHW"]
    if any(any(around[letter]) for letter in layout if letter not in spatial):
        return None
    added = [around[letter][end] for end in (0, 1) for letter in spatial]
    if any(more < 0 < n for n, more in zip(own, added, strict=True)):
        return None
    return [n + more for n, more in zip(own, added, strict=True)]


def _padded(call: Any, pad: Any, padding: list[int], mutator: Any) -> Any:
    data, weight = (mutator.visit_expr(each) for each in (pad.args[0], call.args[1]))
    return remade(call, data, weight, padding=padding)
