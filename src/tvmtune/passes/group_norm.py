"""Group normalization in two passes over the data, by channels.

TVM's kernel adds the squares of all values and subtracts the square of their mean, in float32: where
the mean is 30 times the standard deviation, the result is off by 0.3%, and where it is 1000 times, it
is NaN. Here the second pass adds squares of what is left after the mean is subtracted (Chan et al.,
"Algorithms for Computing the Sample Variance", 1983). Each channel is summed by itself, so that
neighboring channels fill the lanes of vectors where they come last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvmtune.passes import repeated_calls
from tvmtune.static_shapes import has_static_shapes
from tvmtune.types import product

LONGEST = 1024
"""Terms that are added one after another, at most, if a channel has several lines: of more, each line
is summed by itself, so that the error does not grow with the image."""
REMEMBERED = 4096
"""Kernels that are remembered; see :mod:`tvmtune.passes.repeated_calls`."""
_NAME = "relax.nn.group_norm"


@dataclass(frozen=True)
class _Groups:
    """What is normalized together."""

    shape: tuple[int, ...]
    """Of the data."""
    channel: int
    """The channels' axis."""
    axes: tuple[int, ...]
    """Those that are summed, besides channels."""
    size: int
    """Channels of a group."""
    dtype: str
    """Of sums."""

    @property
    def sums(self) -> tuple[int, ...]:
        """Shape of the channels' sums: one along the axes that are summed."""
        return _without(self.shape, self.axes)

    @property
    def passes(self) -> list[tuple[int, ...]]:
        """The axes to sum, in so many kernels."""
        if len(self.axes) > 1 and product([self.shape[axis] for axis in self.axes]) > LONGEST:
            return [self.axes[-1:], self.axes[:-1]]
        return [self.axes]

    @property
    def count(self) -> int:
        """Values of a group."""
        return self.size * product([self.shape[axis] for axis in self.axes])

    def of(self, index: Sequence[Any]) -> list[Any]:
        """Where the sums of an element's channel are."""
        return [0 if axis in self.axes else position for axis, position in enumerate(index)]


def _group_norm(builder: Any, call: Any) -> Any:
    from tvm import relax

    if not has_static_shapes(call):
        legalize = repeated_calls.legalizer(_NAME)
        assert legalize is not None
        return legalize(builder, call)
    attrs = call.attrs
    data, scale, shift = call.args
    kind = str(data.ty.dtype)
    shape = tuple(int(extent) for extent in data.ty.shape)
    channel = int(attrs.channel_axis) % len(shape)
    groups = _Groups(
        shape=shape,
        channel=channel,
        axes=tuple(int(axis) % len(shape) for axis in attrs.axes),
        size=shape[channel] // int(attrs.num_groups),
        dtype="float64" if kind == "float64" else "float32",
    )

    def called(kernel: Any, output: tuple[int, ...], dtype: str, *arguments: Any) -> Any:
        variable = builder.add_func(kernel, "group_norm")
        return relax.call_tir(variable, [*arguments], relax.TensorType(output, dtype))

    def summed(*mean: Any) -> Any:
        """The channels' sums or, with their ``mean``, those of their squared differences from it."""
        first, *rest = groups.passes
        extents = _without(shape, first)
        kernel = _sum_kernel(groups, shape, kind, first, bool(mean))
        total = builder.emit(called(kernel, extents, groups.dtype, data, *mean))
        for axes in rest:
            kernel = _sum_kernel(groups, extents, groups.dtype, axes, False)
            extents = _without(extents, axes)
            total = builder.emit(called(kernel, extents, groups.dtype, total))
        return total

    mean = builder.emit(called(_mean_kernel(groups), groups.sums, groups.dtype, summed()))
    factor = _factor_kernel(groups, str(scale.ty.dtype), float(attrs.epsilon), bool(attrs.scale))
    factors = builder.emit(called(factor, groups.sums, groups.dtype, summed(mean), scale))
    result = _result_kernel(groups, kind, str(shift.ty.dtype), bool(attrs.center))
    return called(result, shape, kind, data, mean, factors, shift)


LEGALIZERS = {_NAME: _group_norm}


def _without(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """The shape after summing ``axes``, which stay as axes of one step."""
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))


def _extents(shape: Sequence[int]) -> list[Any]:
    """The shape as Relax has it, with 64-bit integers."""
    from tvm import tirx

    return [tirx.IntImm("int64", extent) for extent in shape]


def _kernel(*tensors: Any) -> Any:
    from tvm import te

    return te.create_prim_func([*tensors]).without_attr("global_symbol")


@functools.lru_cache(REMEMBERED)
def _sum_kernel(
    groups: _Groups, shape: tuple[int, ...], dtype: str, axes: tuple[int, ...], squared: bool
) -> Any:
    """(data of ``shape``, the channels' mean if ``squared``) to the sums along ``axes``."""
    from tvm import te

    x = te.placeholder(_extents(shape), dtype, "x")
    mean = te.placeholder(_extents(groups.sums), groups.dtype, "mean")
    extents = _extents(shape)
    terms = [te.reduce_axis((0, extents[axis]), "k") for axis in axes]

    def total(*i: Any) -> Any:
        at = list(i)
        for axis, term in zip(axes, terms, strict=True):
            at[axis] = term
        value = x(*at).astype(groups.dtype)
        if squared:
            value -= mean(*groups.of(i))
            value *= value
        return te.sum(value, axis=terms)

    sums = te.compute(_extents(_without(shape, axes)), total, name="sums")
    return _kernel(x, *([mean] if squared else []), sums)


@functools.lru_cache(REMEMBERED)
def _mean_kernel(groups: _Groups) -> Any:
    """The channels' sums to the mean of each channel's group."""
    from tvm import te

    sums = te.placeholder(_extents(groups.sums), groups.dtype, "sums")
    mean = _per_group(groups, sums, lambda total, c: total / groups.count, "mean")
    return _kernel(sums, mean)


@functools.lru_cache(REMEMBERED)
def _factor_kernel(groups: _Groups, dtype: str, epsilon: float, scaled: bool) -> Any:
    """(sums of squared differences, scale) to what each channel is multiplied by."""
    from tvm import te, tirx

    squares = te.placeholder(_extents(groups.sums), groups.dtype, "squares")
    scale = te.placeholder(_extents([groups.shape[groups.channel]]), dtype, "scale")

    def inverse(total: Any, c: Any) -> Any:
        deviation = te.sqrt(total / groups.count + tirx.const(epsilon, groups.dtype))
        return (scale(c).astype(groups.dtype) if scaled else 1.0) / deviation

    return _kernel(squares, scale, _per_group(groups, squares, inverse, "factor"))


@functools.lru_cache(REMEMBERED)
def _result_kernel(groups: _Groups, dtype: str, shift_dtype: str, centered: bool) -> Any:
    """(data, mean, factors, shift) to the normalized data."""
    from tvm import te

    x = te.placeholder(_extents(groups.shape), dtype, "x")
    mean, factor = (
        te.placeholder(_extents(groups.sums), groups.dtype, n) for n in ("mean", "factor")
    )
    shift = te.placeholder(_extents([groups.shape[groups.channel]]), shift_dtype, "shift")

    def element(*i: Any) -> Any:
        result = (x(*i).astype(groups.dtype) - mean(*groups.of(i))) * factor(*groups.of(i))
        if centered:
            result += shift(i[groups.channel]).astype(groups.dtype)
        return result.astype(dtype)

    return _kernel(
        x, mean, factor, shift, te.compute(_extents(groups.shape), element, name="normalized")
    )


def _per_group(groups: _Groups, sums: Any, value: Callable[[Any, Any], Any], name: str) -> Any:
    """``value(total of the channel's group, channel)`` for each channel."""
    from tvm import te

    channel, size = groups.channel, groups.size
    k = te.reduce_axis((0, *_extents([size])), "k")

    def total(*i: Any) -> Any:
        return te.sum(sums(*i[:channel], i[channel] * size + k, *i[channel + 1 :]), axis=k)

    shape = [*groups.sums[:channel], groups.sums[channel] // size, *groups.sums[channel + 1 :]]
    totals = te.compute(_extents(shape), total, name="totals")

    def element(*i: Any) -> Any:
        return value(totals(*i[:channel], i[channel] // size, *i[channel + 1 :]), i[channel])

    return te.compute(_extents(groups.sums), element, name=name)
