"""Group normalization in two passes over the data, by channels.

TVM's kernel adds the squares of all values and subtracts the square of their mean, in float32: where
the mean is 30 times the standard deviation, the result is off by 0.3%, and where it is 1000 times, it
is NaN. Here the second pass adds squares of what is left after the mean is subtracted (Chan et al.,
"Algorithms for Computing the Sample Variance", 1983). Each channel is summed by itself, so that
neighboring channels fill the lanes of vectors where they come last.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tvmtune.passes import repeated_calls
from tvmtune.static_shapes import has_static_shapes
from tvmtune.types import product

LONGEST = 1024
"""Terms that are added one after another, at most, if a channel has several lines: of more, each line
is summed by itself, so that the error does not grow with the image."""


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
    if not has_static_shapes(call):
        return repeated_calls.legalized(builder, call)
    attrs = call.attrs
    data, scale, shift = call.args
    shape = tuple(int(extent) for extent in data.ty.shape)
    channel = int(attrs.channel_axis) % len(shape)
    groups = _Groups(
        shape=shape,
        channel=channel,
        axes=tuple(int(axis) % len(shape) for axis in attrs.axes),
        size=shape[channel] // int(attrs.num_groups),
        dtype="float64" if str(data.ty.dtype) == "float64" else "float32",
    )

    def called(program: Callable[..., Any], options: tuple[Hashable, ...], *tensors: Any) -> Any:
        options = (groups, *options)
        return repeated_calls.call_te(builder, "group_norm", program, options, *tensors)

    def summed(*mean: Any) -> Any:
        """The channels' sums or, with their ``mean``, those of their squared differences from it."""
        first, *rest = groups.passes
        total = builder.emit(called(_sums, (first,), data, *mean))
        for axes in rest:
            total = builder.emit(called(_sums, (axes,), total))
        return total

    mean = builder.emit(called(_mean, (), summed()))
    options = (float(attrs.epsilon), bool(attrs.scale))
    factors = builder.emit(called(_factors, options, summed(mean), scale))
    return called(_normalized, (bool(attrs.center),), data, mean, factors, shift)


LEGALIZERS = {"relax.nn.group_norm": _group_norm}


def _without(shape: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """The shape after summing ``axes``, which stay as axes of one step."""
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))


def _sums(groups: _Groups, axes: tuple[int, ...], x: Any, mean: Any = None) -> Any:
    """The sums along ``axes`` or, with the channels' ``mean``, those of squared differences from it."""
    from tvm import te

    terms = [te.reduce_axis((0, x.shape[axis]), "k") for axis in axes]

    def total(*i: Any) -> Any:
        at = list(i)
        for axis, term in zip(axes, terms, strict=True):
            at[axis] = term
        value = x(*at).astype(groups.dtype)
        if mean is not None:
            value -= mean(*groups.of(i))
            value *= value
        return te.sum(value, axis=terms)

    return te.compute(_without(x.shape, axes), total, name="sums")


def _mean(groups: _Groups, sums: Any) -> Any:
    """The mean of each channel's group, from the channels' sums."""
    return _per_group(groups, sums, lambda total, c: total / groups.count, "mean")


def _factors(groups: _Groups, epsilon: float, scaled: bool, squares: Any, scale: Any) -> Any:
    """What each channel is multiplied by, from the sums of squared differences."""
    from tvm import te, tirx

    def inverse(total: Any, c: Any) -> Any:
        deviation = te.sqrt(total / groups.count + tirx.const(epsilon, groups.dtype))
        return (scale(c).astype(groups.dtype) if scaled else 1.0) / deviation

    return _per_group(groups, squares, inverse, "factor")


def _normalized(
    groups: _Groups, centered: bool, x: Any, mean: Any, factors: Any, shift: Any
) -> Any:
    from tvm import te

    def element(*i: Any) -> Any:
        result = (x(*i).astype(groups.dtype) - mean(*groups.of(i))) * factors(*groups.of(i))
        if centered:
            result += shift(i[groups.channel]).astype(groups.dtype)
        return result.astype(str(x.dtype))

    return te.compute(groups.shape, element, name="normalized")


def _per_group(groups: _Groups, sums: Any, value: Callable[[Any, Any], Any], name: str) -> Any:
    """``value(total of the channel's group, channel)`` for each channel."""
    from tvm import te

    channel, size = groups.channel, groups.size
    k = te.reduce_axis((0, size), "k")

    def total(*i: Any) -> Any:
        return te.sum(sums(*i[:channel], i[channel] * size + k, *i[channel + 1 :]), axis=k)

    shape = [*groups.sums[:channel], groups.sums[channel] // size, *groups.sums[channel + 1 :]]
    totals = te.compute(shape, total, name="totals")

    def element(*i: Any) -> Any:
        return value(totals(*i[:channel], i[channel] // size, *i[channel + 1 :]), i[channel])

    return te.compute(groups.sums, element, name=name)
