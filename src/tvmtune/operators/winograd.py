"""Winograd's convolutions F(2x2, 3x3) and F(4x4, 3x3) for NHWC data.

An m x m output tile needs (m + 2)^2 multiplications per channel pair instead of 9 m^2: 2.25 and 4 times
fewer. The weights are transformed at compile time, in float64; at run time there are an input
transform, (m + 2)^2 matrix products and an output transform. The transforms have fixed schedules
(``rules.py`` registers them); the matrix products are left to the search.

A convolution with a dilation of d computes d * d interleaved images, of which each has every d-th pixel
of every d-th row, as one without dilation does. A tile belongs to one of them.

A convolution of (n, d, h, w, c) data computes each frame of its output as one of an image that has the
channels of all frames that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from tvmtune.arrays import empty
from tvmtune.operators import convolution_calls, tiled_loops
from tvmtune.operators.combinations import Factors, combine
from tvmtune.passes import constants
from tvmtune.passes.blocks import LEFT_ALONE
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.packed_products import Window

KERNEL = 3


@dataclass(frozen=True)
class Transform:
    """The matrices of F(tile x tile, 3x3); Lavin and Gray, "Fast Algorithms for Convolutional Neural
    Networks", 2015, section 4.

    TVM has a generator (``topi.nn.winograd_util``), but with its own choice of points, and for TE
    tensors, while the weights are transformed by NumPy.
    """

    input: Factors
    """(tile + 2, tile + 2)"""
    weight: Factors
    """(tile + 2, 3)"""
    output: Factors
    """(tile, tile + 2)"""

    @property
    def tile(self) -> int:
        """Outputs along each side of a tile."""
        return len(self.output)

    @property
    def alpha(self) -> int:
        """Products along each side of a tile, and its inputs."""
        return len(self.input)

    @classmethod
    def at(cls, *points: Fraction | int) -> Transform:
        """Interpolate at these points and at infinity (Toom and Cook)."""
        tile = len(points) + 1 - (KERNEL - 1)
        others = [[q for q in points if q != p] for p in points]
        scale = [prod(p - q for q in rest) for p, rest in zip(points, others, strict=True)]
        rows = [[*_polynomial(rest), 0] for rest in others] + [_polynomial(points)]
        weight = [
            [Fraction(p) ** k / by for k in range(KERNEL)]
            for p, by in zip(points, scale, strict=True)
        ]
        output = [[*(p**i for p in points), int(i == tile - 1)] for i in range(tile)]
        return cls(_matrix(rows), _matrix([*weight, [0, 0, 1]]), _matrix(output))

    def with_unit_weights(self) -> Transform:
        """The same with 1 as the first nonzero factor of each row for the weights, and the row for the
        inputs multiplied by what it was: transforming weights then takes fewer multiplications."""
        factors = [next(value for value in row if value) for row in self.weight]
        inputs, weights = (zip(factors, rows, strict=True) for rows in (self.input, self.weight))
        return Transform(
            tuple(tuple(factor * value for value in row) for factor, row in inputs),
            tuple(tuple(value / factor for value in row) for factor, row in weights),
            self.output,
        )


def _polynomial(roots: Sequence[Fraction | int]) -> list[Fraction | int]:
    """Coefficients of the product of ``x - root``, from that of the constant."""
    result: list[Fraction | int] = [1]
    for root in roots:
        above, below = [0, *result], [*result, 0]
        result = [a - root * b for a, b in zip(above, below, strict=True)]
    return result


def _matrix(rows: Sequence[Sequence[Fraction | int]]) -> Factors:
    return tuple(tuple(float(value) for value in row) for row in rows)


F2 = Transform.at(0, 1, -1)
F4 = Transform.at(0, Fraction(5, 8), Fraction(-5, 8), Fraction(5, 4), Fraction(-5, 4))
"""Its errors are less than half of those with Lavin and Gray's points (root mean square)."""
F4_INTEGERS = Transform.at(0, 1, -1, 2, -2)
"""Lavin and Gray's F(4x4, 3x3)."""

_DILATION = "tvmtune.dilation"
"""Annotation of the last stage: the dilation, down and across, if there is any."""
LANES = 16
"""Channels per vector in the transforms; they must divide the numbers of channels."""


def applies(call: Any) -> bool:
    """3x3, stride 1, one group, NHWC float32, constant weights, multiples of 16 channels; with
    dilation, images of which F(2x2) saves a third of the multiplications. With frames, any number of
    them and any stride between them, without dilation."""
    if not convolution_calls.is_plain(call):
        return False
    attrs = call.attrs
    *frames, kh, kw, ci, co = (int(d) for d in call.args[1].ty.shape)
    is_dense = all(int(d) == 1 for d in attrs.dilation)
    return (
        (kh, kw) == (3, 3)
        and all(int(s) == 1 for s in attrs.strides[len(frames) :])
        and ci % LANES == 0
        and co % LANES == 0
        and (is_dense or (not frames and _saves_a_third(call)))
    )


def _saves_a_third(call: Any) -> bool:
    """Whether interleaved images are not mostly what is added to fill tiles."""
    _, height, width, _ = (int(extent) for extent in call.ty.shape)
    down, across = (int(d) for d in call.attrs.dilation)
    tiles = tiles_along(F2, height, down) * tiles_along(F2, width, across)
    return 3 * F2.alpha**2 * tiles <= 2 * KERNEL**2 * height * width


_TRANSFORM = 25
"""Time to transform a value, to store it and to load it again, in multiply-adds of a matrix product."""
_LOAD = 13
"""Time to load a weight from memory, in multiply-adds.

Both fit the times of two hardware threads of a Xeon with AVX-512 for the 3x3 convolutions of ResNet-18,
SqueezeNet, Inception v3, DenseNet-121 and GoogLeNet."""
GAIN = 0.85
"""Part of the direct algorithm's time, at most, for which another one is preferred; and of that of
F(2x2, 3x3), which rounds less, for which F(4x4, 3x3) is."""


def fastest(call: Any) -> Transform | None:
    """What should take the least time for a convolution that :func:`applies` accepted; None for the
    direct algorithm, and unless a seventh of the time is saved."""
    best, least = None, GAIN * time(None, call)
    for transform in (F2, F4):
        if (taken := time(transform, call)) < least:
            best, least = transform, GAIN * taken
    return best


def time(transform: Transform | None, call: Any, per_weight: float = _LOAD) -> float:
    """In multiply-adds of a matrix product; of the direct convolution without a transform.
    ``per_weight`` is what each weight that is multiplied takes besides its products."""
    ci, co = channels(call)
    if transform is None:
        *images, height, width, _ = (int(extent) for extent in call.ty.shape)
        return 9 * ci * co * (prod(images) * height * width + per_weight)
    count = tile_count(transform, call)
    return transform.alpha**2 * (ci * co * (count + per_weight) + _TRANSFORM * count * (ci + co))


def tile_count(transform: Transform, call: Any) -> int:
    """How many tiles there are."""
    *images, height, width, _ = (int(extent) for extent in call.ty.shape)
    *_, down, across = (int(d) for d in call.attrs.dilation)
    along = tiles_along(transform, height, down) * tiles_along(transform, width, across)
    return prod(images) * along


def channels(call: Any) -> tuple[int, int]:
    """Of the input, those of all frames that an output reads, and of the output."""
    *frames, _, _, ci, co = (int(extent) for extent in call.args[1].ty.shape)
    return prod(frames) * ci, co


def tiles_along(transform: Transform, outputs: int, dilation: int) -> int:
    """How many tiles an image has along an axis with so many outputs."""
    return dilation * -(-outputs // (dilation * transform.tile))


def replace(transform: Transform, builder: Any, call: Any, values: bool = True) -> Any:
    """The Winograd program for a ``relax.nn.conv2d`` or ``conv3d`` that :func:`applies` accepted.

    Without ``values`` the transformed weights, which are larger, stay uninitialized.
    """
    weight = transformed_weight(transform, call, values)
    return replace_by(convolution, transform, weight, builder, call)


def transformed_weight(transform: Transform, call: Any, values: bool) -> np.ndarray:
    """:func:`transform_weight` of a call's weights; uninitialized without ``values``."""
    if values:
        return transform_weight(transform, call.args[1].value.numpy())
    return empty((transform.alpha, transform.alpha, *channels(call)), "float32")


def replace_by(
    program: Callable[[Transform, Any, Any, Window], Any],
    transform: Transform,
    weight: np.ndarray,
    builder: Any,
    call: Any,
) -> Any:
    """As :func:`replace`, by another program with the parameters of :func:`convolution`, and with the
    ``weight`` that it takes."""
    window = Window.of(call.attrs)

    def compute(data: Any, stored: Any) -> Any:
        return program(transform, data, stored, window)

    stored = constants.share(weight)
    return call_fusable(builder, compute, call.args[0], stored, name=_name(call.ty.shape))


def _name(shape: Sequence[Any]) -> str:
    return f"conv{len(shape) - 2}d_winograd"


def transform_weight(transform: Transform, weight: np.ndarray) -> np.ndarray:
    """(3, 3, ci, co) to (alpha, alpha, ci, co), or (d, 3, 3, ci, co) to (alpha, alpha, d * ci, co)."""
    g = np.array(transform.weight, dtype="float64")
    result = np.einsum("ak,bl,...klio->ab...io", g, g, weight.astype("float64")).astype("float32")
    return result.reshape(*result.shape[:2], -1, result.shape[-1])


def convolution(transform: Transform, data: Any, weight: Any, window: Window) -> Any:
    """TE program from (n, h, w, ci) and (alpha, alpha, ci, co) to (n, h', w', co); or from
    (n, d, h, w, ci) and (alpha, alpha, frames * ci, co) to (n, d', h', w', co)."""
    tiles = Tiles.of(transform, data, int(weight.shape[2]), window)
    inverse = stages(
        *(transform, (tiles.rows * tiles.columns,)),
        lambda y, x, p, c: tiles.element(p // tiles.columns, p % tiles.columns, y, x, c),
        weight,
        input_attrs={"schedule_rule": "tvmtune.winograd_input"},
        # Without a write-cache level the rules try to merge the output transform into the product, for
        # which TVM 0.27 raises an exception.
        product_attrs={"s_tir.meta_schedule.write_cache_level": [2]},
        output_attrs={"schedule_rule": "tvmtune.winograd_output", **tiles.attrs},
    )
    return tiles.stored(
        int(weight.shape[3]), lambda o, p, i, j, c: inverse[i, j, o * tiles.columns + p, c]
    )


@dataclass(frozen=True)
class Tiles:
    """The tiles of all images, in rows."""

    transform: Transform
    padded: Any
    """(n, h, w, c) data, padded to whole tiles; with dilation (n, down, h / down, across, w / across,
    c); with frames (n, d', h, w, frames * c)."""
    output: tuple[int, ...]
    """n, h' and w'; or n, d', h' and w'."""
    dilation: tuple[int, int]
    lines: int
    """Rows of each interleaved image."""
    places: int
    """Tiles in a row of it."""

    @classmethod
    def of(cls, transform: Transform, data: Any, terms: int, window: Window) -> Tiles:
        """Those of the (n, h, w, c) or (n, d, h, w, c) ``data``; ``terms`` has the channels of all
        frames that an output reads."""
        *images, h, w, ci = (int(d) for d in data.shape)
        half = len(window.padding) // 2
        (*front, top, left), (*back, bottom, right) = window.padding[:half], window.padding[half:]
        *_, down, across = window.dilation
        out_h, out_w = h + top + bottom - 2 * down, w + left + right - 2 * across
        lines, places = (
            tiles_along(transform, outputs, apart) // apart
            for outputs, apart in ((out_h, down), (out_w, across))
        )
        rows, columns = (count * transform.tile + KERNEL - 1 for count in (lines, places))
        if front:
            frames, stride = terms // ci, window.strides[0]
            images[1] = (images[1] + front[0] + back[0] - frames) // stride + 1
            reads = _Frames(images[1], frames, stride, front[0])
            padded = _frames(data, reads, (top, left), (rows, columns))
        else:
            padded = _padded(data, (top, left), (down, across), (rows, columns))
        return cls(transform, padded, (*images, out_h, out_w), (down, across), lines, places)

    @property
    def rows(self) -> int:
        """Of all images."""
        return prod(self.output[:-2]) * self.lines * self.dilation[0]

    @property
    def columns(self) -> int:
        """Tiles in a row, those of interleaved images next to each other."""
        return self.places * self.dilation[1]

    @property
    def attrs(self) -> dict[str, Any]:
        """Of the last stage, for its schedule."""
        return {} if self.dilation == (1, 1) else {_DILATION: [*self.dilation]}

    def element(self, row: Any, column: Any, y: Any, x: Any, c: Any) -> Any:
        """In TE, an input of a tile."""
        tile, (down, across) = self.transform.tile, self.dilation
        if self.dilation == (1, 1):
            pixel = (row % self.lines * tile + y, column * tile + x)
            return self.padded[(*self._image(row // self.lines), *pixel, c)]
        line, place = row // down, column // across
        at = (row % down, line % self.lines * tile + y, column % across, place * tile + x)
        return self.padded[(line // self.lines, *at, c)]

    def stored(self, channels: int, load: Callable[..., Any]) -> Any:
        """In TE, the output with so many channels, from ``load(row, column, i, j, channel)``."""
        from tvm import te

        tile, (down, across) = self.transform.tile, self.dilation

        def element(*at: Any) -> Any:
            b, *frame, y, x, c = at
            if frame:
                b = b * self.output[1] + frame[0]
            row = (b * self.lines + y // (down * tile)) * down + y % down
            column = x // (across * tile) * across + x % across
            return load(row, column, y // down % tile, x // across % tile, c)

        shape = (*self.output, channels)
        return te.compute(shape, element, name=_name(shape), attrs=LEFT_ALONE)

    def _image(self, number: Any) -> tuple[Any, ...]:
        """In TE, the position of an image, or of a frame among all images'."""
        if len(self.output) == 3:
            return (number,)
        return number // self.output[1], number % self.output[1]


@dataclass(frozen=True)
class _Frames:
    """What each frame of an output reads."""

    outputs: int
    """Frames of the output."""
    count: int
    """Frames that each of them reads."""
    stride: int
    """How many frames after those of the one before."""
    before: int
    """Frames of padding before the first."""


def _frames(data: Any, reads: _Frames, before: tuple[int, int], extents: tuple[int, int]) -> Any:
    """In TE, for each frame of the output an image of these extents, with so many zeros before, that
    has the channels of all frames that it reads."""
    from tvm import te, tirx

    n, d, h, w, channels = (int(extent) for extent in data.shape)
    (top, left), (rows, columns) = before, extents

    def element(b: Any, f: Any, y: Any, x: Any, c: Any) -> Any:
        at_d, at_y, at_x = f * reads.stride + c // channels - reads.before, y - top, x - left
        checks = [at_y >= 0, at_y < h, at_x >= 0, at_x < w]
        if reads.before or (reads.outputs - 1) * reads.stride + reads.count > d:
            checks += [at_d >= 0, at_d < d]
        value = data[b, at_d, at_y, at_x, c % channels]
        return tirx.if_then_else(tirx.all(*checks), value, tirx.const(0.0, "float32"))

    shape = (n, reads.outputs, rows, columns, reads.count * channels)
    return te.compute(shape, element, name="winograd_pad", attrs=LEFT_ALONE)


def _padded(
    data: Any, before: tuple[int, int], dilation: tuple[int, int], extents: tuple[int, int]
) -> Any:
    """In TE, the data with so many zeros before, as interleaved images of these extents if there is
    dilation."""
    from tvm import te, tirx, topi

    n, h, w, channels = (int(d) for d in data.shape)
    (top, left), (down, across), (rows, columns) = before, dilation, extents
    if dilation == (1, 1):
        after = (0, rows - h - top, columns - w - left, 0)
        return topi.nn.pad(data, (0, top, left, 0), after, name="winograd_pad", attrs=LEFT_ALONE)

    def element(b: Any, r: Any, y: Any, s: Any, x: Any, c: Any) -> Any:
        at_y, at_x = y * down + r - top, x * across + s - left
        inside = tirx.all(at_y >= 0, at_y < h, at_x >= 0, at_x < w)
        return tirx.if_then_else(inside, data[b, at_y, at_x, c], tirx.const(0.0, "float32"))

    shape = (n, down, rows, across, columns, channels)
    return te.compute(shape, element, name="winograd_pad", attrs=LEFT_ALONE)


def stages(
    transform: Transform,
    tiles: tuple[int, ...],
    patch: Callable[..., Any],
    weight: Any,
    *,
    input_attrs: dict[str, Any],
    product_attrs: dict[str, Any],
    output_attrs: dict[str, Any],
) -> Any:
    """In TE, all tiles transformed, multiplied, and transformed back: (..., tile, tile, tiles, co).

    ``tiles`` has the number of tiles, after that of blocks if they are computed in blocks, which is
    then the first axis of all stages. ``patch`` gives the input of a tile, (..., alpha, alpha, tiles,
    ci). ``attrs`` are those of the three stages that the schedule rules see.
    """
    from tvm import te

    alpha = transform.alpha
    *blocks, count = tiles
    ci, co = (int(d) for d in weight.shape[2:])
    k = te.reduce_axis((0, ci), "k")
    packed = input_stages(transform, (*tiles, ci), patch, input_attrs)

    def products(*at: Any) -> Any:
        *o, a, b, p, c = at
        return te.sum(packed(*o, a, b, p, k) * weight[a, b, k, c], axis=k)

    shape = (*blocks, alpha, alpha, count, co)
    product = te.compute(shape, products, name="winograd_product", attrs=product_attrs)
    return output_stages(transform, product, output_attrs)


def input_stages(
    transform: Transform,
    extents: tuple[int, ...],
    patch: Callable[..., Any],
    attrs: dict[str, Any],
) -> Any:
    """In TE, transformed inputs, (..., alpha, alpha, tiles, channels), whose other ``extents`` are
    given; ``patch`` has the same axes."""
    from tvm import te

    *blocks, count, channels = extents
    shape = (*blocks, transform.alpha, transform.alpha, count, channels)

    def rows(*at: Any) -> Any:
        *o, a, x, p, c = at
        return combine(transform.input, a, lambda y: patch(*o, y, x, p, c))

    def columns(*at: Any) -> Any:
        *o, a, b, p, c = at
        return combine(transform.input, b, lambda x: half(*o, a, x, p, c))

    half = te.compute(shape, rows, name="winograd_input_rows", attrs=LEFT_ALONE)
    return te.compute(shape, columns, name="winograd_input", attrs=attrs)


def output_stages(
    transform: Transform,
    product: Any,
    attrs: dict[str, Any],
) -> Any:
    """In TE, (..., alpha, alpha, tiles, channels) products transformed back: (..., tile, tile, tiles,
    channels)."""
    from tvm import te

    *blocks, alpha, _, count, channels = (int(extent) for extent in product.shape)
    tile = transform.tile

    def rows(*at: Any) -> Any:
        *o, i, b, p, c = at
        return combine(transform.output, i, lambda a: product(*o, a, b, p, c))

    def columns(*at: Any) -> Any:
        *o, i, j, p, c = at
        return combine(transform.output, j, lambda b: back(*o, i, b, p, c))

    shape = (*blocks, tile, alpha, count, channels)
    back = te.compute(shape, rows, name="winograd_output_rows", attrs=LEFT_ALONE)
    shape = (*blocks, tile, tile, count, channels)
    return te.compute(shape, columns, name="winograd_output", attrs=attrs)


def schedule_input(sch: Any, block: Any) -> list[Any]:
    """One tile and 16 channels at a time: pad and transform the patch in registers."""
    blocks = sch.get_loops(block)[:-4]
    task = transform_input(sch, block)
    sch.parallel(sch.fuse(*blocks, task) if blocks else task)
    return [sch]


def transform_input(sch: Any, block: Any) -> Any:
    """The loop over tiles and 16 channels, in which the input's stages are computed in registers."""
    half = sch.get_producers(block)[0]
    pad = sch.get_producers(half)[0]
    *_, a, b, p, c = sch.get_loops(block)
    outer, lanes = sch.split(c, [None, LANES])
    sch.reorder(p, outer, a, b, lanes)
    task = sch.fuse(p, outer)
    sch.vectorize(lanes)
    sch.compute_at(half, task, preserve_unit_loops=True)
    sch.compute_at(pad, task, preserve_unit_loops=True)
    for loop in (*sch.get_loops(half)[-4:-2], a, b):
        sch.unroll(loop)
    for inner in (half, pad):
        sch.vectorize(sch.get_loops(inner)[-1])
    return task


def schedule_output(sch: Any, block: Any) -> list[Any]:
    """One tile and 16 channels at a time, epilogue included, so that products are read once."""
    tasks, pixel = tile_output(sch, block)
    task = sch.fuse(*tasks)
    transform_output(sch, block, task, pixel)
    sch.parallel(task)
    return [sch]


def tile_output(sch: Any, block: Any) -> tuple[list[Any], list[Any]]:
    """Inline what follows the last stage into the kernel's last block, and tile that: the loops over
    images, rows and columns of tiles, and groups of 16 channels; and those over a tile's columns and
    the 16 channels.

    With dilation, the tiles that are interleaved with each other are one: TVM cannot tell which
    elements of the last stage one of them reads.
    """
    last = tiled_loops.inline_epilogue(sch, block)
    *images, y, x, c = sch.get_loops(last)
    n = sch.fuse(*images) if len(images) > 1 else images[0]
    *_, side, _, _ = sch.get_loops(block)
    tile = int(sch.get(side).extent)
    down, across = _dilation(sch, block)
    rows, i = sch.split(y, [None, tile * down])
    columns, j = sch.split(x, [None, tile * across])
    outer, lanes = sch.split(c, [None, LANES])
    sch.reorder(n, rows, columns, outer, i, j, lanes)
    return [n, rows, columns, outer], [j, lanes]


def transform_output(sch: Any, block: Any, task: Any, pixel: Sequence[Any]) -> None:
    """Compute the output's stages in registers within ``task``, a loop over tiles and 16 channels;
    ``pixel`` as from :func:`tile_output`."""
    back = sch.get_producers(block)[0]
    j, lanes = pixel
    sch.vectorize(lanes)
    sch.compute_at(block, task, preserve_unit_loops=True)
    is_dilated = _dilation(sch, block) != (1, 1)
    if is_dilated:  # one at a time of the tiles that are interleaved
        *_, height, width, task, _ = sch.get_loops(block)
        sch.reorder(task, height, width)
    sch.compute_at(back, task, preserve_unit_loops=True)
    for inner, place in ((block, -3 if is_dilated else -4), (back, -4)):
        loops = sch.get_loops(inner)
        for loop in loops[place : place + 2]:
            sch.unroll(loop)
        sch.vectorize(loops[-1])
    sch.unroll(j)


def _dilation(sch: Any, block: Any) -> tuple[int, int]:
    """Down and across, from the last stage."""
    down, across = sch.get(block).annotations.get(_DILATION, (1, 1))
    return int(down), int(across)
