"""Splits convolutions whose taps read mostly padding into products of one tap each.

With a dilation of 12 on 14x14 pixels, the corners of a 3x3 kernel read 4 pixels of the image, the
others 28, and the center all of them: 18% of the multiplications of the whole kernel. A tap is computed
for the outputs for which it reads the image; the results are added.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, is_float32, rebind
from tvmtune.passes.convolution_axes import Axis, axes_of, output_layout, with_taps
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.static_shapes import static_shape
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm

_SAVED = 1 / 3
"""Share of the time that splitting must save, as far as :func:`_saves` can tell: Winograd's algorithm
saves as much of most convolutions."""
_MOVING = 64
"""Multiplications that take as long as writing a result of a tap, and adding it to the others."""
_STARTING = 1e6
"""Multiplications that take as long as starting a kernel. Both are estimates for two AVX2 cores."""


@dataclass(frozen=True)
class _Tap:
    at: tuple[int, ...]
    outputs: tuple[range, ...]
    """For which it reads the image, along each axis."""

    @property
    def count(self) -> int:
        return product([len(each) for each in self.outputs])


def split(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with such convolutions of ``main`` split; itself if there are none.

    They have float32 values, a constant kernel, and one group. Taps that read some elements only get
    negative padding.
    """
    made: dict[Any, Callable[[Any], Any]] = {}
    for binding in bindings(mod):
        axes = axes_of(binding.value)
        if not any(axis.dilation > 1 for axis in axes):
            continue
        taps = _taps(axes)
        if _is_plain(binding.value) and _saves(binding.value, axes, taps):
            made[binding.var] = functools.partial(_sum, binding.value, axes, taps)
    return rebind(mod, made)


def _is_plain(call: Any) -> bool:
    return call.attrs.groups == 1 and is_float32(call)


def _taps(axes: list[Axis]) -> list[_Tap]:
    """Those that read the image."""
    along = [[(tap, axis.reading(tap)) for tap in range(axis.taps)] for axis in axes]
    found = [_Tap(*zip(*each, strict=True)) for each in itertools.product(*along)]
    return [tap for tap in found if tap.count]


def _saves(call: Any, axes: list[Axis], taps: list[_Tap]) -> bool:
    data, output = static_shape(call.args[0]), static_shape(call)
    assert data is not None and output is not None
    images = data[str(call.attrs.data_layout).index("N")]
    inputs = data[str(call.attrs.data_layout).index("C")]
    outputs = product(output) // product([axis.outputs for axis in axes]) // images
    whole = product([axis.outputs * axis.taps for axis in axes]) * inputs
    by_taps = sum(tap.count * (inputs + _MOVING) for tap in taps)
    started = _STARTING * len(taps) / (images * outputs)
    return len(taps) > 1 and by_taps + started <= (1 - _SAVED) * whole


def _sum(call: Any, axes: list[Axis], taps: list[_Tap], mutator: Any) -> Any:
    """The results of taps, added. A tap for all outputs comes last: its kernel adds the others."""
    from tvm import relax

    data, builder = mutator.visit_expr(call.args[0]), mutator.builder_
    *some, last = sorted(taps, key=lambda each: each.count)
    covers = last.count == product([axis.outputs for axis in axes])
    added = some if covers else taps
    layout = output_layout(call)
    whole = dict(zip(layout, map(range, static_shape(call) or ()), strict=True))
    letters = [axis.letter for axis in axes]
    places = [{**whole, **dict(zip(letters, tap.outputs, strict=True))} for tap in added]
    total = call_fusable(
        builder,
        functools.partial(_placed, [[*place.values()] for place in places], [*whole.values()]),
        *(builder.emit(_result(call, data, axes, tap)) for tap in added),
        name="add_taps",
        fuses=not covers,
    )
    if not covers:
        return total
    return relax.op.add(builder.emit(_result(call, data, axes, last)), builder.emit(total))


def _placed(places: list[list[range]], whole: list[range], *results: Any) -> Any:
    """The sum of ``results``, each with its place along all axes."""
    from tvm import te, tirx

    def element(*at: Any) -> Any:
        terms = []
        for result, place in zip(results, places, strict=True):
            inside, index = tirx.const(True), list(at)
            for axis, outputs in enumerate(place):
                if outputs != whole[axis]:
                    index[axis] = at[axis] - outputs.start
                    inside = tirx.all(inside, index[axis] >= 0, index[axis] < len(outputs))
            terms.append(tirx.if_then_else(inside, result(*index), tirx.const(0, "float32")))
        return functools.reduce(lambda x, y: x + y, terms)

    return te.compute([len(extent) for extent in whole], element, name="taps")


def _result(call: Any, data: Any, axes: list[Axis], tap: _Tap) -> Any:
    alone = [
        replace(
            axis,
            outputs=len(outputs),
            taps=1,
            dilation=1,
            before=-axis.start(at, outputs.start),
            after=axis.start(at, outputs.stop - 1) + 1 - axis.extent,
        )
        for axis, at, outputs in zip(axes, tap.at, tap.outputs, strict=True)
    ]
    return with_taps(call, data, alone, [slice(at, at + 1) for at in tap.at])
