"""A dense layer: 64 rows of 512 features to 1024 units, the weights as (512, 1024): 1568 points.

Measured in full, into dense.json.gz, by

    python benchmarks/spaces/measure.py benchmarks/spaces/dense.py
"""

from tvm import te

import tvmtune


@tvmtune.operator
def dense(rows: int = 64, features: int = 512, units: int = 1024):
    x = te.placeholder((rows, features), name="x")
    w = te.placeholder((features, units), name="w")
    k = te.reduce_axis((0, features), name="k")
    y = te.compute((rows, units), lambda i, o: te.sum(x[i, k] * w[k, o], axis=k), name="y")
    return [x, w, y]


@dense.reference
def in_numpy(x, w):
    return x @ w


@dense.template("cpu")
def on_cpu(sch):
    """A tile of rows and units for each parallel step; a smaller one in registers, several of which
    share eight rows of the weights."""
    block = sch.get_sblock("y")
    i, o, k = sch.get_loops(block)
    cache = sch.cache_write(block, 0, "global")
    rows, ri, ii = sch.split(i, sch.sample_perfect_tile(i, n=3, max_innermost_factor=64))
    outs, oi, lanes = sch.split(o, sch.sample_perfect_tile(o, n=3, max_innermost_factor=64))
    chunks, ki = sch.split(k, [None, 8])
    sch.reorder(outs, rows, chunks, ri, ki, ii, oi, lanes)
    sch.reverse_compute_at(cache, rows, preserve_unit_loops=True)
    steps = sch.fuse(outs, rows)
    sch.parallel(steps)
    sch.annotate(steps, "pragma_auto_unroll_max_step", 64)
    sch.annotate(steps, "pragma_unroll_explicit", 1)
    sch.vectorize(lanes)
