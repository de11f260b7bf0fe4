"""A 3x3 convolution of 14x14 pixels, 256 channels in and out, NHWC and HWIO: 2688 points.

Measured in full, into conv3x3.json.gz, by

    python benchmarks/spaces/measure.py benchmarks/spaces/conv3x3.py
"""

import numpy as np
from tvm import te

import tvmtune


@tvmtune.operator
def conv3x3(size: int = 14, ci: int = 256, co: int = 256):
    x = te.placeholder((size, size, ci), name="x")
    w = te.placeholder((3, 3, ci, co), name="w")
    pad = te.compute(
        (size + 2, size + 2, ci),
        lambda i, j, c: te.if_then_else(
            te.all(i >= 1, i <= size, j >= 1, j <= size), x[i - 1, j - 1, c], 0.0
        ),
        name="pad",
    )
    kh, kw = te.reduce_axis((0, 3), name="kh"), te.reduce_axis((0, 3), name="kw")
    c = te.reduce_axis((0, ci), name="c")
    y = te.compute(
        (size, size, co),
        lambda i, j, o: te.sum(pad[i + kh, j + kw, c] * w[kh, kw, c, o], axis=[kh, kw, c]),
        name="y",
    )
    return [x, w, y]


@conv3x3.reference
def in_numpy(x, w):
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))
    return np.einsum("ijcab,abco->ijo", windows, w, optimize=True)


@conv3x3.template("cpu")
def on_cpu(sch):
    """A slice of the output channels and some rows for each parallel step; a tile of pixels and
    channels in registers, several of which may share the weights of a part of the sum."""
    block = sch.get_sblock("y")
    i, j, o, kh, kw, c = sch.get_loops(block)
    cache = sch.cache_write(block, 0, "global")
    rows, ri = sch.split(i, sch.sample_perfect_tile(i, n=2, max_innermost_factor=14))
    cols, ji = sch.split(j, sch.sample_perfect_tile(j, n=2, max_innermost_factor=14))
    outs, oi, lanes = sch.split(o, sch.sample_perfect_tile(o, n=3, max_innermost_factor=64))
    chunks, ci = sch.split(c, sch.sample_perfect_tile(c, n=2, max_innermost_factor=8))
    sch.reorder(outs, rows, cols, chunks, kh, kw, ri, ci, ji, oi, lanes)
    sch.reverse_compute_at(cache, cols, preserve_unit_loops=True)
    steps = sch.fuse(outs, rows)
    sch.parallel(steps)
    sch.annotate(steps, "pragma_auto_unroll_max_step", 64)
    sch.annotate(steps, "pragma_unroll_explicit", 1)
    sch.vectorize(lanes)
    row, _, channel = sch.get_loops(sch.get_sblock("pad"))
    sch.parallel(row)
    sch.vectorize(sch.split(channel, [None, 16])[1])
