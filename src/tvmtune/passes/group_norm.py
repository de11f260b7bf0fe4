"""Group normalization in two passes over the data, by channels.

TVM's kernel adds the squares of all values and subtracts the square of their mean, in float32: where
the mean is 30 times the standard deviation, the result is off by 0.3%, and where it is 1000 times, it
is NaN. Here the second pass adds squares of what is left after the mean is subtracted (Chan et al.,
"Algorithms for Computing the Sample Variance", 1983). Each channel is summed by itself, so that
neighboring channels fill the lanes of vectors where they come last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvmtune.passes import repeated_calls
from tvmtune.static_shapes import has_static_shapes
from tvmtune.types import product

_NAME = "relax.nn.group_norm"
_SUMS = "float32"
"""What all sums are computed in."""


@dataclass(frozen=True)
class _Groups:
    """What is normalized together."""

    shape: Sequence[int]
    """Of the data."""
    channel: int
    """The channels' axis."""
    axes: Sequence[int]
    """Those that are summed, besides channels."""
    size: int
    """Channels of a group."""

    @property
    def sums(self) -> list[int]:
        """Shape of the channels' sums: one along the axes that are summed."""
        return [1 if axis in self.axes else extent for axis, extent in enumerate(self.shape)]

    @property
    def count(self) -> int:
        """Values of a group."""
        return self.size * product([self.shape[axis] for axis in self.axes])

    def of(self, index: Sequence[Any]) -> list[Any]:
        """Where the sums of an element's channel are."""
        return [0 if axis in self.axes else position for axis, position in enumerate(index)]


def _group_norm(builder: Any, call: Any) -> Any:
    if not has_static_shapes(call):
        legalize = repeated_calls.legalizer(_NAME)
        assert legalize is not None
        return legalize(builder, call)
    attrs = call.attrs
    data, scale, shift = call.args
    shape = [int(extent) for extent in data.ty.shape]
    channel = int(attrs.channel_axis) % len(shape)
    groups = _Groups(
        shape=shape,
        channel=channel,
        axes=[int(axis) % len(shape) for axis in attrs.axes],
        size=shape[channel] // int(attrs.num_groups),
    )

    def emit(program: Callable[..., Any], *arguments: Any) -> Any:
        return builder.emit(builder.call_te(program, *arguments, primfunc_name_hint="group_norm"))

    def average(sums: Any) -> Any:
        return _per_group(groups, sums, lambda total, c: total / groups.count, "mean")

    def factor(squares: Any, scale: Any) -> Any:
        from tvm import te, tirx

        def inverse(total: Any, c: Any) -> Any:
            deviation = te.sqrt(total / groups.count + tirx.const(float(attrs.epsilon), _SUMS))
            return (scale(c).astype(_SUMS) if attrs.scale else 1.0) / deviation

        return _per_group(groups, squares, inverse, "factor")

    def normalize(x: Any, mean: Any, factor: Any, shift: Any) -> Any:
        from tvm import te

        def element(*i: Any) -> Any:
            result = (x(*i).astype(_SUMS) - mean(*groups.of(i))) * factor(*groups.of(i))
            if attrs.center:
                result += shift(i[channel]).astype(_SUMS)
            return result.astype(str(x.dtype))

        return te.compute(shape, element, name="normalized")

    mean = emit(average, emit(lambda x: _sums(groups, x), data))
    factors = emit(factor, emit(lambda x, m: _sums(groups, x, m), data, mean), scale)
    return builder.call_te(normalize, data, mean, factors, shift, primfunc_name_hint="group_norm")


LEGALIZERS = {_NAME: _group_norm}


def _sums(groups: _Groups, x: Any, mean: Any = None) -> Any:
    """The sum of each channel or, with a ``mean``, of its squared differences from that."""
    from tvm import te

    taps = [te.reduce_axis((0, groups.shape[axis]), "k") for axis in groups.axes]

    def total(*i: Any) -> Any:
        at = list(i)
        for axis, tap in zip(groups.axes, taps, strict=True):
            at[axis] = tap
        value = x(*at).astype(_SUMS)
        if mean is not None:
            value -= mean(*i)
            value *= value
        return te.sum(value, axis=taps)

    return te.compute(groups.sums, total, name="sums")


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
