"""TFLite operators that move elements."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert.interpreter")

from networks.in_tvm import assert_tvm_agrees
from networks.tflite_models import QuantizedBuilder, TfliteBuilder
from tvmtune.networks.tflite.network import TfliteNetwork


def network(content: bytes) -> TfliteNetwork:
    return TfliteNetwork(content, name="net", label="net.tflite")


@pytest.mark.parametrize(
    ("shape", "blocks", "pads", "result"),
    [
        ((2, 7, 5, 3), [2, 3], [[1, 0], [0, 1]], (12, 4, 2, 3)),
        ((2, 6, 3), [3], [[0, 0]], (6, 2, 3)),
    ],
    ids=["images", "signals"],
)
def test_blocks_move_to_the_batch_and_back(shape: Any, blocks: Any, pads: Any, result: Any):
    """Older converters surround dilated convolutions with this."""
    g = TfliteBuilder()
    given = [g.constant(blocks, "int32"), g.constant(pads, "int32")]
    y = g.add("SPACE_TO_BATCH_ND", [g.input("x", shape), *given], result)
    z = g.add("BATCH_TO_SPACE_ND", [g.add("ABS", [y], result), *given], shape)
    assert_tvm_agrees(network(g.content(y, z)))


def test_quantized_blocks_are_padded_with_zeros():
    g = QuantizedBuilder()
    given = [g.data((1, 4, 4, 3), zero=7), g.constant([2, 2], "int32")]
    pads = g.constant([[2, 0], [0, 2]], "int32")
    y = g.apply("SPACE_TO_BATCH_ND", [*given, pads], (4, 3, 3, 3), 0.05, 7)
    assert_tvm_agrees(network(g.content(y)))


@pytest.mark.parametrize("sizes", [[2, -1, 1], [-1, 2, 1]])
def test_one_size_of_a_split_may_be_the_rest(sizes: list[int]):
    g = TfliteBuilder()
    shapes = [(2, size if size > 0 else 3, 4) for size in sizes]
    given = [g.input("x", (2, 6, 4)), g.constant(sizes, "int32"), g.constant(1, "int32")]
    made = network(g.content(*g.several("SPLIT_V", given, shapes, numSplits=3)))
    assert [spec.shape for spec in made.outputs] == shapes
    assert_tvm_agrees(made)


@pytest.mark.parametrize(
    ("axes", "result"), [(None, (3, 4)), ([], (3, 4)), ([0, -1], (3, 1, 4))], ids=str
)
def test_a_squeeze_without_axes_is_of_all_that_have_one_element(axes: Any, result: Any):
    g = TfliteBuilder()
    y = g.add("SQUEEZE", [g.input("x", (1, 3, 1, 4, 1))], result, squeezeDims=axes)
    assert_tvm_agrees(network(g.content(y)))


@pytest.mark.parametrize("half_pixel", [False, True])
@pytest.mark.parametrize("size", [(9, 7), (1, 8)], ids=str)
def test_a_resize_to_the_nearest_pixels_keeps_the_corners(size: Any, half_pixel: bool):
    g = TfliteBuilder()
    given = [g.input("x", (1, 5, 4, 2)), g.constant(size, "int32")]
    options = {"alignCorners": True, "halfPixelCenters": half_pixel}
    y = g.add("RESIZE_NEAREST_NEIGHBOR", given, (1, *size, 2), **options)
    assert_tvm_agrees(network(g.content(y)))


@pytest.mark.parametrize("mode", [0, 1], ids=["reflect", "symmetric"])
def test_mirrors_stand_on_or_beside_the_first_element(mode: int):
    g = TfliteBuilder()
    pads = g.constant([[1, 2], [2, 1]], "int32")
    y = g.add("MIRROR_PAD", [g.input("x", (3, 4)), pads], (6, 7), mode=mode)
    assert_tvm_agrees(network(g.content(y)))


def test_several_axes_are_reversed():
    g = TfliteBuilder()
    y = g.add("REVERSE_V2", [g.input("x", (2, 3, 4)), g.constant([-1, 1], "int32")], (2, 3, 4))
    assert_tvm_agrees(network(g.content(y)))


@pytest.mark.parametrize(
    ("begins", "ends", "steps", "result", "options"),
    [
        ([1, 2], [2, 3], [1, 1], (2, 3), {}),
        ([-3, 1], [2, 4], [1, 2], (2, 2), {}),
        ([1, 2], [1, 3], [1, 1], (3,), {"shrinkAxisMask": 1}),
        ([1, 2], [3, 3], [1, 1], (3, 3), {"beginMask": 1}),
    ],
    ids=["plain", "negative", "one row", "from the first"],
)
def test_ends_of_a_slice_may_be_distances(
    begins: Any, ends: Any, steps: Any, result: Any, options: dict[str, int]
):
    g = TfliteBuilder()
    given = [g.input("x", (3, 6)), *(g.constant(each, "int32") for each in (begins, ends, steps))]
    y = g.add("STRIDED_SLICE", given, result, offset=True, **options)
    assert_tvm_agrees(network(g.content(y)))
