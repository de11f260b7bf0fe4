"""Convert an image with interleaved channels from RGB to YUV (BT.601, studio swing, no offsets).

tvmtune tune --network examples/rgb2yuv.py --arg w=1920 --arg h=1080 -o rgb2yuv.so
"""

import numpy as np
from tvm import te, tirx

import tvmtune

YUV = (
    (0.257, 0.504, 0.098),
    (-0.148, -0.291, 0.439),
    (0.439, -0.368, -0.071),
)
"""Rows: the weights of R, G and B in Y, U and V."""


@tvmtune.operator
def rgb2yuv(w: int = 1920, h: int = 1080):
    rgb = te.placeholder((h, w, 3), name="rgb")

    def convert(i, j, k):
        y, u, v = (sum(rgb[i, j, c] * weight for c, weight in enumerate(row)) for row in YUV)
        return tirx.if_then_else(k == 0, y, tirx.if_then_else(k == 1, u, v))

    return [rgb, te.compute((h, w, 3), convert, name="yuv")]


@rgb2yuv.reference
def in_numpy(rgb):
    return rgb @ np.array(YUV, rgb.dtype).T


@rgb2yuv.template("cpu")
def on_cpu(sch):
    """Parallel over rows and row segments, unrolled over channels, vectorized over pixels."""
    i, j, k = sch.get_loops(sch.get_sblock("yuv"))
    outer, middle, lanes = sch.split(j, sch.sample_perfect_tile(j, n=3, max_innermost_factor=64))
    rows, row = sch.split(i, sch.sample_perfect_tile(i, n=2, max_innermost_factor=64))
    sch.reorder(rows, outer, row, middle, k, lanes)
    sch.parallel(sch.fuse(rows, outer))
    sch.unroll(k)
    sch.vectorize(lanes)


@rgb2yuv.template("gpu")
def on_gpu(sch):
    """One thread per pixel; the block size is a knob."""
    i, j, k = sch.get_loops(sch.get_sblock("yuv"))
    pixels = sch.fuse(i, j)
    blocks, threads = sch.split(
        pixels, [None, sch.sample_categorical([32, 64, 128, 256, 512], [0.2] * 5)]
    )
    sch.bind(blocks, "blockIdx.x")
    sch.bind(threads, "threadIdx.x")
    sch.unroll(k)
