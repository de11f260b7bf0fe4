"""Default schedules of kernels without products: right for every shape, in parallel and in vectors."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import te, topi

from kernels import error, random_args, run_kernel
from tvmtune.cpu_features import AVX, AVX512, NEON
from tvmtune.operators import cpu_pipeline
from tvmtune.spaces import cpu_rows

SHAPES = [(1, 12, 128, 128), (1, 3, 5, 197), (4, 49, 49), (2, 7), (1, 1000), (64, 31), (3, 2, 48)]


def kernel(function, *shapes: tuple[int, ...]) -> tvm.IRModule:
    args = [te.placeholder(shape, name=f"arg{i}") for i, shape in enumerate(shapes)]
    results = function(*args)
    outputs = [results] if isinstance(results, te.Tensor) else list(results)
    func = te.create_prim_func([*args, *outputs])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def scheduled(mod: tvm.IRModule, unit=AVX512, cores: int = 2) -> str:
    """The text of the schedule, after a check of its results."""
    schedule = cpu_rows.schedule(mod, unit, cores)
    assert schedule is not None
    args = random_args(mod)
    assert error(run_kernel(schedule.mod, args), run_kernel(mod, args)) < 1e-5
    return schedule.mod.script()


@pytest.mark.sweep
@pytest.mark.parametrize("unit", [AVX512, AVX, NEON])
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(shape, unit):
    mod = kernel(topi.nn.softmax, shape)
    if shape[0] == 1 and len(shape) == 2:
        assert cpu_rows.schedule(mod, unit) is None, "a single row has nothing to share"
    else:
        assert "T.parallel" in scheduled(mod, unit)


def test_a_softmax_over_another_axis_of_the_same_extent_does_not_repeat_planes_for_each_row():
    """Sums are indexed (n, w) and outputs (n, c): equal extents do not make them the same rows."""
    mod = kernel(lambda x: topi.nn.softmax(x, axis=1), (4, 64, 64))
    assert cpu_rows.schedule(mod, AVX512, 2) is None


@pytest.mark.sweep
@pytest.mark.parametrize("shape", [(1, 128, 768), (2, 50, 100), (197, 96), (6, 24)])
def test_layer_norm(shape):
    def normalize(x, scale, offset):
        return topi.nn.layer_norm(x, scale, offset, [len(shape) - 1], 1e-5)

    text = scheduled(kernel(normalize, shape, shape[-1:], shape[-1:]))
    assert "T.parallel" in text


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("shape", "axes", "tile"),
    [
        ((1, 56, 56, 64), (0, 3, 1, 2), [16, 16]),
        ((1, 48, 13, 65), (0, 2, 3, 1), [13, 16]),
        ((2, 197, 96), (0, 2, 1), [16, 1]),
        ((1, 32, 6, 48), (0, 2, 3, 1), [16, 16]),
        ((1, 3, 64, 64), (0, 2, 3, 1), []),
        ((1, 64, 12, 32), (0, 2, 1, 3), []),
        ((4, 197, 197), (0, 2, 1), [197]),
    ],
    ids=[
        *("from channels last", "to channels last", "a prime", "heads of keys"),
        *("few channels", "heads", "two primes"),
    ],
)
def test_transpositions_are_computed_in_tiles_of_lines_of_the_cache(shape, axes, tile):
    def transposed(x, bias, residual):
        return topi.nn.relu(residual + topi.transpose(x, axes) + bias)

    text = scheduled(kernel(transposed, shape, (1,), tuple(shape[axis] for axis in axes)))
    loops = re.findall(r" in (?:range|T\.vectorized)\((?:T\.int64\()?(\d+)", text)
    assert "T.parallel" in text
    if tile:
        assert loops == [str(n) for n in tile]
    else:
        assert len(loops) < 2  # in the order of the output


def test_a_broadcast_is_no_transposition():
    def broadcast(x):
        return topi.broadcast_to(topi.expand_dims(x, 1), (256, 1031))

    assert re.search(r"range\((T\.int64\()?1031\b", scheduled(kernel(broadcast, (256,))))


@pytest.mark.sweep
@pytest.mark.parametrize("axes", [(1, 2, 3), (3, 2)])
@pytest.mark.parametrize("cores", [1, 2, 8])
def test_parts_of_a_whole_mean_are_computed_in_parallel(axes, cores):
    """Of which every axis is kept, with one element."""
    shape = (1, 8 if len(axes) == 3 else 2, 40, 64)

    def mean(x):
        return topi.rsqrt(topi.sum(x * x, axes, True) / 99.0 + 1e-3)

    text = scheduled(kernel(mean, shape), cores=cores)
    extents = [int(n) for n in re.findall(r"T\.parallel\((?:T\.int64\()?(\d+)", text)]
    assert max(extents) >= 2 * cores
    assert "T.vectorized" in text


@pytest.mark.sweep
@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize(
    "shape", [(1, 112, 112, 32), (1, 7, 7, 1280), (2, 5, 3, 24), (1, 1, 9, 7), (1, 40, 40, 1)]
)
def test_means_over_the_pixels(shape, cores):
    text = scheduled(kernel(lambda x: topi.sum(x, (1, 2), True) / 9.0, shape), cores=cores)
    assert "T.parallel" in text
    if shape[-1] % 8 == 0:
        assert "T.vectorized" in text


def test_few_sums_of_many_terms_are_shared_among_threads():
    mod = kernel(lambda x: topi.sum(x, (1, 2), True), (1, 112, 112, 32))
    assert re.search(r"T\.parallel\((T\.int64\()?112\b", scheduled(mod, cores=8))


@pytest.mark.sweep
@pytest.mark.parametrize("unit", [AVX512, AVX, NEON])
@pytest.mark.parametrize("reduce", [topi.max, topi.min, topi.sum])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((128, 768), None), ((3, 4096), None), ((1, 64, 8, 8), (2, 3)), ((2, 512), -1)],
)
def test_reductions_of_neighbors_in_memory_keep_lanes_of_partial_results(unit, reduce, shape, axes):
    text = scheduled(kernel(lambda x: reduce(x, axes), shape), unit)
    assert "T.vectorized" in text
    assert "T.parallel" in text


def test_rows_that_fill_no_vectors_and_positions_of_extrema_keep_the_rules_of_tvm():
    assert cpu_rows.schedule(kernel(lambda x: topi.sum(x, -1), (64, 49)), AVX512, 2) is None
    assert cpu_rows.schedule(kernel(lambda x: topi.argmax(x, -1), (64, 512)), AVX512, 2) is None


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1)])
def test_pooling(kind, size, stride, padding):
    def pool(x):
        window, pads = (size, size), (padding,) * 4
        return topi.nn.pool2d(x, window, (stride,) * 2, (1, 1), pads, kind, layout="NHWC")

    assert "T.vectorized" in scheduled(kernel(pool, (1, 14, 14, 40)))


@pytest.mark.parametrize("shape", [(1, 14, 14, 224), (3, 58), (7,), (1, 1, 5000), ()])
def test_elementwise_chains_become_one_loop(shape):
    text = scheduled(kernel(lambda x, y: topi.nn.relu(topi.tanh(x) * y + x), shape, shape))
    assert text.count("T.sblock(") == 1 + ("root" in text)


def test_rows_that_are_no_multiple_of_a_long_vector_are_not_fused_with_others():
    """TVM's rules vectorize across rows here: twenty times slower."""
    text = scheduled(kernel(lambda x, y: topi.nn.relu(x * y), (1, 56, 56, 224), (1, 1, 1, 224)))
    assert "T.vectorized(T.int64(32))" in text or "T.vectorized(32)" in text


def test_all_outputs_of_a_split_are_scheduled():
    text = scheduled(kernel(lambda x: topi.split(x, 3, 1), (64, 2304)))
    assert text.count("T.parallel") == 3


def test_concatenation_and_transposition():
    def shuffle(x, y):
        joined = topi.transpose(topi.concatenate((x, y), axis=3), (0, 3, 1, 2))
        return topi.nn.relu(joined)

    assert "T.parallel" in scheduled(kernel(shuffle, (1, 28, 28, 58), (1, 28, 28, 58)))


def joined(parts: tuple[int, ...]) -> tvm.IRModule:
    """A ReLU of scaled parts of so many channels, for 50 pixels."""

    def relu(scale, *data):
        return topi.nn.relu(topi.concatenate(data, axis=1) * scale)

    return kernel(relu, (1, sum(parts)), *((50, extent) for extent in parts))


def compiled(mod: tvm.IRModule, unit=AVX512) -> str:
    """The text of the loops that are compiled."""
    return cpu_pipeline.rewrite_loops(cpu_rows.schedule(mod, unit, 2).mod).script()


@pytest.mark.sweep
@pytest.mark.parametrize("unit", [AVX512, AVX, NEON])
@pytest.mark.parametrize("parts", [(64, 32), (16, 16, 16), (48, 16, 64, 32)])
def test_no_vector_chooses_among_whole_vectors_of_parts(parts, unit):
    mod = joined(parts)
    scheduled(mod, unit)
    text = compiled(mod, unit)
    assert "if_then_else" not in text
    assert text.count("T.vectorized") == len(parts)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("parts", "mixed"),
    [((120, 120), 1), ((40, 60, 60), 2), ((90, 90, 90, 90), 3)],
)
def test_only_vectors_of_two_parts_choose_between_them(parts, mixed):
    mod = joined(parts)
    scheduled(mod)
    assert compiled(mod).count("T.vectorized") == len(parts) + mixed


def test_parts_without_vectors_have_loops_of_their_own():
    mod = joined((75, 75))
    scheduled(mod)
    text = compiled(mod)
    assert "if_then_else" not in text
    assert text.count("in range(T.int64(75))") + text.count("in range(75)") == 2


def test_padded_channels_are_loaded_in_vectors():
    def padded(x, scale):
        return topi.nn.pad(x, [0, 16], [0, 32]) * scale

    mod = kernel(padded, (50, 80), (50, 128))
    scheduled(mod)
    text = compiled(mod)
    assert "if_then_else" not in text
    assert text.count("T.vectorized") == 3


@pytest.mark.sweep
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("rows", [96, 20])
def test_loops_are_not_split_where_a_row_bounds_them(rows, upper):
    """TVM's parts of a triangle would go beyond the row."""

    def triangle(x, y):
        return topi.trilu(topi.concatenate((x, y), axis=1), tvm.tirx.const(1), upper)

    mod = kernel(triangle, (rows, 64), (rows, 32))
    scheduled(mod)
    assert "range(T.m" not in compiled(mod)


def test_comparisons_of_values_do_not_keep_loops_whole():
    def leaky(x, y):
        return topi.nn.leaky_relu(topi.concatenate((x, y), axis=1), 0.1)

    mod = kernel(leaky, (50, 64), (50, 32))
    scheduled(mod)
    assert compiled(mod).count("T.vectorized") == 2


@pytest.mark.parametrize("shape", [(1, 128, 64), (4096, 16)])
def test_few_sums_over_one_axis_are_shared_among_threads(shape):
    mod = kernel(lambda x: topi.sum(x, axis=len(shape) - 2), shape)
    assert "_rf" in scheduled(mod, cores=16)


@pytest.mark.parametrize("cores", [1, 4, 64])
def test_a_few_long_rows_are_shared_among_threads(cores):
    text = scheduled(kernel(topi.nn.relu, (2, 1 << 14)), cores=cores)
    (extent,) = re.findall(r"T\.parallel\((?:T\.int64\()?(\d+)", text)
    assert int(extent) >= min(2 * cores, 512)
    assert "T.vectorized" in text


def test_small_kernels_start_no_threads():
    assert "T.parallel" not in scheduled(kernel(topi.nn.relu, (1, 1000)))
