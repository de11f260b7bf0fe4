"""Winograd's convolutions for data with channels last.

A tile of m x m outputs of a 3x3 kernel needs (m + 2)^2 multiplications per channel pair instead of
9 m^2: 2.25 times fewer for m = 2, and 4 times for m = 4. Kernels of one row or column have such tiles,
too. The weights are transformed at compile time, in float64; at run time there are an input transform,
a matrix product for each position in a tile, and an output transform. The transforms have fixed
schedules (``rules.py`` registers them); the matrix products are left to the search.

A convolution with a dilation of d computes d * d interleaved images, of which each has every d-th pixel
of every d-th row, as one without dilation does. A tile belongs to one of them.

A convolution of (n, d, h, w, c) data computes each frame of its output as one of an image that has the
channels of all frames that it reads. One of (n, w, c) data, a signal, is one of images of one row. For
long kernels in a single row, see :mod:`tvmtune.operators.winograd_transforms`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tvmtune.arrays import empty
from tvmtune.operators import tiled_loops
from tvmtune.operators.combinations import combine
from tvmtune.operators.winograd_calls import Convolution, tiles_along, vector_lanes
from tvmtune.operators.winograd_transforms import Transforms
from tvmtune.passes import constants
from tvmtune.passes.blocks import LEFT_ALONE
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.packed_products import Window

_DILATION = "tvmtune.dilation"
"""Annotation of the last stage: the dilation, down and across, if there is any."""


def replace(transforms: Transforms, builder: Any, call: Any, values: bool = True) -> Any:
    """The program for a ``relax.nn.conv1d``, ``conv2d`` or ``conv3d`` that these transforms fit.

    Without ``values`` the transformed weights, which are larger, stay uninitialized.
    """
    weight = transformed_weight(transforms, call, values)
    return replace_by(convolution, transforms, weight, builder, call)


def transformed_weight(transforms: Transforms, call: Any, values: bool) -> np.ndarray:
    """:func:`transform_weight` of a call's weights; uninitialized without ``values``."""
    if values:
        return transform_weight(transforms, call.args[1].value.numpy())
    conv = Convolution.of(call)
    terms = transforms.parts * conv.inputs
    return empty((*transforms.alpha, terms, conv.outputs), "float32")


def replace_by(
    program: Callable[[Transforms, Any, Any, Window], Any],
    transforms: Transforms,
    weight: np.ndarray,
    builder: Any,
    call: Any,
) -> Any:
    """As :func:`replace`, by another program with the parameters of :func:`convolution`, and with the
    ``weight`` that it takes."""
    window = Window.of(call.attrs)

    def compute(data: Any, stored: Any) -> Any:
        return program(transforms, data, stored, window)

    stored = constants.share(weight)
    return call_fusable(builder, compute, call.args[0], stored, name=_name(call.ty.shape))


def _name(shape: Sequence[Any]) -> str:
    return f"conv{len(shape) - 2}d_winograd"


def transform_weight(transforms: Transforms, weight: np.ndarray) -> np.ndarray:
    """(kh, kw, ci, co) to (alpha down, alpha across, ci, co), or (d, kh, kw, ci, co) to (alpha down,
    alpha across, d * ci, co), or with parts (alpha down, alpha across, parts * ci, co). A signal's
    (k, ci, co) are as (1, k, ci, co)."""
    axes = (transforms.down, transforms.across)
    down, across = (np.array(each.weight, dtype="float64") for each in axes)
    exact = weight.reshape(-1, *transforms.kernel, *weight.shape[-2:]).astype("float64")
    if missing := -transforms.kernel[1] % transforms.across.kernel:
        exact = np.pad(exact, ((0, 0), (0, 0), (0, missing), (0, 0), (0, 0)))
    # Kernels of several parts have one row and no frames: the parts take the place of frames.
    kernels = exact.reshape(-1, *(each.kernel for each in axes), *weight.shape[-2:])
    result = np.einsum("ak,bl,dklio->abdio", down, across, kernels).astype("float32")
    return result.reshape(*result.shape[:2], -1, result.shape[-1])


def convolution(transforms: Transforms, data: Any, weight: Any, window: Window) -> Any:
    """TE program from (n, h, w, ci) data and transformed weights (alpha down, alpha across, ci, co) to
    (n, h', w', co); from (n, d, h, w, ci) and (..., frames * ci, co) to (n, d', h', w', co); or from
    (n, w, ci) to (n, w', co). Kernels of several parts have weights (..., parts * ci, co)."""
    tiles = Tiles.of(transforms, data, int(weight.shape[2]), window)

    def patch(y: Any, x: Any, p: Any, c: Any) -> Any:
        row, column = (0, p) if transforms.parts > 1 else (p // tiles.columns, p % tiles.columns)
        return tiles.element(row, column, y, x, c)

    inverse = stages(
        *(transforms, (tiles.rows * tiles.columns,), patch, weight),
        step=tiles.dilation[1],
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

    transforms: Transforms
    padded: Any
    """(n, h, w, c) data, padded to whole tiles; with dilation (n, down, h / down, across, w / across,
    c); with frames (n, d', h, w, frames * c)."""
    output: tuple[int, ...]
    """n, h' and w'; or n, d', h' and w'."""
    is_signal: bool
    """Whether the output has no axis for h'."""
    dilation: tuple[int, int]
    lines: int
    """Rows of each interleaved image."""
    places: int
    """Tiles in a row of it."""

    @classmethod
    def of(cls, transforms: Transforms, data: Any, terms: int, window: Window) -> Tiles:
        """Those of the (n, h, w, c), (n, d, h, w, c) or (n, w, c) ``data``; ``terms`` has the channels
        of all frames that an output reads."""
        *images, h, w, ci = _image_shape(data)
        half = len(window.padding) // 2
        (*front, top, left), (*back, bottom, right) = window.padding[:half], window.padding[half:]
        axes = (transforms.down, transforms.across)
        down, across = dilation = tuple(
            apart if each.kernel > 1 else 1
            for each, apart in zip(axes, window.dilation[-2:], strict=True)
        )
        out_h = h + top + bottom - (transforms.down.kernel - 1) * down
        out_w = w + left + right - (transforms.kernel[1] - 1) * across
        lines, places = (
            tiles_along(each, outputs, apart) // apart
            for each, outputs, apart in zip(axes, (out_h, out_w), dilation, strict=True)
        )
        rows, columns = (
            count * each.tile + each.kernel - 1
            for each, count in zip(axes, (lines, places + transforms.parts - 1), strict=True)
        )
        if front:
            frames, stride = terms // ci, window.strides[0]
            images[1] = (images[1] + front[0] + back[0] - frames) // stride + 1
            reads = _Frames(images[1], frames, stride, front[0])
            padded = _frames(data, reads, (top, left), (rows, columns))
        else:
            padded = _padded(data, (top, left), (down, across), (rows, columns))
        output = (*images, out_h, out_w)
        is_signal = len(data.shape) == 3
        return cls(transforms, padded, output, is_signal, (down, across), lines, places)

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
        (high, wide), (down, across) = self.transforms.tile, self.dilation
        if self.dilation == (1, 1):
            pixel = (row % self.lines * high + y, column * wide + x)
            return self.padded[(*self._image(row // self.lines), *pixel, c)]
        line, place = row // down, column // across
        at = (row % down, line % self.lines * high + y, column % across, place * wide + x)
        return self.padded[(line // self.lines, *at, c)]

    def stored(self, channels: int, load: Callable[..., Any]) -> Any:
        """In TE, the output with so many channels, from ``load(row, column, i, j, channel)``."""
        from tvm import te

        (high, wide), (down, across) = self.transforms.tile, self.dilation

        def element(*at: Any) -> Any:
            b, *frame, y, x, c = (at[0], 0, *at[1:]) if self.is_signal else at
            if frame:
                b = b * self.output[1] + frame[0]
            row = (b * self.lines + y // (down * high)) * down + y % down
            column = x // (across * wide) * across + x % across
            return load(row, column, y // down % high, x // across % wide, c)

        shape = (*self.output, channels)
        if self.is_signal:
            shape = (shape[0], *shape[2:])
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


def _image_shape(data: Any) -> list[int]:
    """That of the data; of a signal, that of images of one row."""
    batch, *extents = (int(extent) for extent in data.shape)
    return [batch, *([1] if len(extents) == 2 else []), *extents]


def _padded(
    data: Any, before: tuple[int, int], dilation: tuple[int, int], extents: tuple[int, int]
) -> Any:
    """In TE, the data with so many zeros before, as interleaved images of these extents if there is
    dilation."""
    from tvm import te, tirx, topi

    n, h, w, channels = _image_shape(data)
    (top, left), (down, across), (rows, columns) = before, dilation, extents
    is_signal, is_dense = len(data.shape) == 3, dilation == (1, 1)
    if is_dense and not is_signal:
        after = (0, rows - h - top, columns - w - left, 0)
        return topi.nn.pad(data, (0, top, left, 0), after, name="winograd_pad", attrs=LEFT_ALONE)

    def element(*at: Any) -> Any:
        b, r, y, s, x, c = (at[0], 0, at[1], 0, *at[2:]) if is_dense else at
        at_y, at_x = y * down + r - top, x * across + s - left
        inside = tirx.all(at_y >= 0, at_y < h, at_x >= 0, at_x < w)
        value = data[b, at_x, c] if is_signal else data[b, at_y, at_x, c]
        return tirx.if_then_else(inside, value, tirx.const(0.0, "float32"))

    image = extents if is_dense else (down, rows, across, columns)
    shape = (n, *image, channels)
    return te.compute(shape, element, name="winograd_pad", attrs=LEFT_ALONE)


def stages(
    transforms: Transforms,
    tiles: tuple[int, ...],
    patch: Callable[..., Any],
    weight: Any,
    *,
    step: int = 1,
    input_attrs: dict[str, Any],
    product_attrs: dict[str, Any],
    output_attrs: dict[str, Any],
) -> Any:
    """In TE, all tiles transformed, multiplied, and transformed back: (..., tile, tile, tiles, co).

    ``tiles`` has the number of tiles, after that of blocks if they are computed in blocks, which is
    then the first axis of all stages. ``patch`` gives the input of a tile, (..., alpha, alpha, tiles,
    ci), with several parts also beyond the last tile. ``step``: how many tiles later the next part
    begins. ``attrs`` are those of the three stages that the schedule rules see.
    """
    from tvm import te

    alpha = transforms.alpha
    *blocks, count = tiles
    terms, co = (int(d) for d in weight.shape[2:])
    k = te.reduce_axis((0, terms), "k")
    ci, later = terms // transforms.parts, (transforms.parts - 1) * step
    packed = input_stages(transforms, (*blocks, count + later, ci), patch, input_attrs)

    def products(*at: Any) -> Any:
        *o, a, b, p, c = at
        tile, channel = (p + k // ci * step, k % ci) if later else (p, k)
        return te.sum(packed(*o, a, b, tile, channel) * weight[a, b, k, c], axis=k)

    shape = (*blocks, *alpha, count, co)
    product = te.compute(shape, products, name="winograd_product", attrs=product_attrs)
    return output_stages(transforms, product, output_attrs)


def input_stages(
    transforms: Transforms,
    extents: tuple[int, ...],
    patch: Callable[..., Any],
    attrs: dict[str, Any],
) -> Any:
    """In TE, transformed inputs, (..., alpha, alpha, tiles, channels), whose other ``extents`` are
    given; ``patch`` has the same axes."""
    from tvm import te

    *blocks, count, channels = extents
    shape = (*blocks, *transforms.alpha, count, channels)

    def rows(*at: Any) -> Any:
        *o, a, x, p, c = at
        return combine(transforms.down.input, a, lambda y: patch(*o, y, x, p, c))

    def columns(*at: Any) -> Any:
        *o, a, b, p, c = at
        return combine(transforms.across.input, b, lambda x: half(*o, a, x, p, c))

    half = te.compute(shape, rows, name="winograd_input_rows", attrs=LEFT_ALONE)
    return te.compute(shape, columns, name="winograd_input", attrs=attrs)


def output_stages(
    transforms: Transforms,
    product: Any,
    attrs: dict[str, Any],
) -> Any:
    """In TE, (..., alpha, alpha, tiles, channels) products transformed back: (..., tile, tile, tiles,
    channels)."""
    from tvm import te

    *blocks, _, alpha, count, channels = (int(extent) for extent in product.shape)
    high, wide = transforms.tile

    def rows(*at: Any) -> Any:
        *o, i, b, p, c = at
        return combine(transforms.down.output, i, lambda a: product(*o, a, b, p, c))

    def columns(*at: Any) -> Any:
        *o, i, j, p, c = at
        return combine(transforms.across.output, j, lambda b: back(*o, i, b, p, c))

    shape = (*blocks, high, alpha, count, channels)
    back = te.compute(shape, rows, name="winograd_output_rows", attrs=LEFT_ALONE)
    shape = (*blocks, high, wide, count, channels)
    return te.compute(shape, columns, name="winograd_output", attrs=attrs)


def schedule_input(sch: Any, block: Any) -> list[Any]:
    """One tile and one vector of channels at a time: pad and transform the patch in registers."""
    blocks = sch.get_loops(block)[:-4]
    task = transform_input(sch, block)
    sch.parallel(sch.fuse(*blocks, task) if blocks else task)
    return [sch]


def transform_input(sch: Any, block: Any) -> Any:
    """The loop over tiles and vectors of channels, in which the input's stages are computed in
    registers."""
    half = sch.get_producers(block)[0]
    pad = sch.get_producers(half)[0]
    *_, a, b, p, c = sch.get_loops(block)
    outer, lanes = _split_vectors(sch, c)
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


def _split_vectors(sch: Any, channels: Any) -> list[Any]:
    """The loops over vectors of channels, and over those of each."""
    return list(sch.split(channels, [None, vector_lanes(int(sch.get(channels).extent))]))


def schedule_output(sch: Any, block: Any) -> list[Any]:
    """One tile and one vector of channels at a time, epilogue included, so that products are read
    once."""
    tasks, pixel = tile_output(sch, block)
    task = sch.fuse(*tasks)
    transform_output(sch, block, task, pixel)
    sch.parallel(task)
    return [sch]


def tile_output(sch: Any, block: Any) -> tuple[list[Any], list[Any]]:
    """Inline what follows the last stage into the kernel's last block, and tile that: the loops over
    images, rows and columns of tiles, and vectors of channels; and those over a tile's columns and the
    channels of a vector.

    With dilation, the tiles that are interleaved with each other are one: TVM cannot tell which
    elements of the last stage one of them reads.
    """
    last = tiled_loops.inline_epilogue(sch, block)
    *images, y, x, c = sch.get_loops(last)
    if not images:  # of a signal, y is the image
        *images, y = sch.split(y, [None, 1])
    n = sch.fuse(*images) if len(images) > 1 else images[0]
    high, wide = (int(sch.get(loop).extent) for loop in sch.get_loops(block)[-4:-2])
    down, across = _dilation(sch, block)
    rows, i = sch.split(y, [None, high * down])
    columns, j = sch.split(x, [None, wide * across])
    outer, lanes = _split_vectors(sch, c)
    sch.reorder(n, rows, columns, outer, i, j, lanes)
    return [n, rows, columns, outer], [j, lanes]


def transform_output(sch: Any, block: Any, task: Any, pixel: Sequence[Any]) -> None:
    """Compute the output's stages in registers within ``task``, a loop over tiles and vectors of
    channels; ``pixel`` as from :func:`tile_output`."""
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
