"""Resizing in PyTorch programs: every mode takes the pixels that PyTorch takes."""

from __future__ import annotations

from typing import Any

import pytest

from networks.in_tvm import assert_tvm_agrees
from tvmtune.errors import TvmtuneError

torch = pytest.importorskip("torch")

from torch.nn.functional import interpolate  # noqa: E402

from networks.torch_models import function_network  # noqa: E402

IMAGE = torch.zeros(1, 2, 5, 6)
SIZES: list[dict[str, Any]] = [
    {"size": (2, 3)},
    {"size": (7, 1)},
    {"size": (5, 9)},
    {"scale_factor": 1.5},
    {"scale_factor": (0.7, 1.1)},
    {"scale_factor": (2.1, 1.0)},
    {"scale_factor": 1.5, "recompute_scale_factor": True},
    {"scale_factor": (2.0, 3.0)},
]
"""Of the result, with and without a scale that does not follow from them."""


def resized(mode: str, *calls: dict[str, Any]) -> Any:
    return lambda x: tuple(interpolate(x, mode=mode, **call) for call in calls)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_the_nearest_pixels_are_those_of_pytorch(mode: str):
    assert_tvm_agrees(function_network(resized(mode, *SIZES), IMAGE), tolerance=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_pytorch_doubles_rows_whatever_the_scale_in_one_of_its_kernels(layout: Any):
    scales = [{"scale_factor": 2.01}, {"scale_factor": 1.005}]

    def resize(x: Any) -> Any:
        return resized("nearest", *scales)((x + 1).contiguous(memory_format=layout))

    assert_tvm_agrees(function_network(resize, torch.zeros(1, 4, 70, 70)), tolerance=0)


@pytest.mark.sweep
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_given_scale_is_not_that_of_the_rounded_sizes(mode: str, align_corners: bool):
    calls = [{**size, "align_corners": align_corners} for size in SIZES]
    assert_tvm_agrees(function_network(resized(mode, *calls), IMAGE))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("extents", "modes"),
    [
        ((7,), ["nearest", "nearest-exact", "linear"]),
        ((3, 5, 4), ["nearest", "nearest-exact", "trilinear"]),
    ],
    ids=["line", "volume"],
)
def test_lines_and_volumes(extents: tuple[int, ...], modes: list[str]):
    def both(x: Any) -> Any:
        return tuple(
            interpolate(x, mode=mode, **call)
            for mode in modes
            for call in (
                *({"scale_factor": scale} for scale in (1.5, 2.1, 1.1)),
                {"size": (4, 3, 9)[: len(extents)]},
            )
        )

    assert_tvm_agrees(function_network(both, torch.zeros(2, 3, *extents)))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiasing(mode: str):
    sizes = [{"size": (2, 3)}, {"size": (3, 9)}, {"scale_factor": (0.3, 0.7)}]
    calls = [{**size, "antialias": True} for size in sizes]
    assert_tvm_agrees(function_network(resized(mode, *calls), torch.zeros(2, 3, 7, 8)))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("nearest", {"scale_factor": 2.0}),
        ("nearest-exact", {"size": (10, 18)}),
        ("bilinear", {"size": (3, 7)}),
        ("bilinear", {"scale_factor": 1.2, "align_corners": True}),
        ("bicubic", {"size": (8, 8)}),
    ],
)
def test_one_operator_where_that_computes_the_same(mode: str, options: dict[str, Any]):
    text = function_network(resized(mode, options), IMAGE).to_relax().script(show_meta=False)
    assert text.count("R.image.resize2d") == 1
    assert "R.take" not in text


@pytest.mark.slow
def test_dtypes():
    def function(x: Any, pixels: Any) -> Any:
        return (
            *(interpolate(x, mode=m, scale_factor=1.5) for m in ("bilinear", "nearest")),
            interpolate(x, scale_factor=2.0),
            interpolate(pixels, size=(7, 4)),
            interpolate(pixels, scale_factor=2.0),
        )

    examples = IMAGE.double(), IMAGE.to(torch.uint8)
    assert_tvm_agrees(function_network(function, *examples), tolerance=1e-12)


@pytest.mark.slow
def test_half_precision_is_computed_in_float32():
    def function(x: Any) -> Any:
        modes = "nearest", "bilinear", "bicubic"
        return tuple(
            interpolate(x, mode=mode, scale_factor=s) for mode in modes for s in (1.5, 2.0)
        )

    assert_tvm_agrees(function_network(function, IMAGE.half()), tolerance=1e-3)


@pytest.mark.parametrize(
    ("example", "options", "message"),
    [
        (IMAGE, {"antialias": True, "align_corners": True}, "antialias with align_corners"),
        (IMAGE.to(torch.uint8), {}, "interpolation of uint8 .* convert it to float32"),
    ],
    ids=["antialias", "uint8"],
)
def test_what_is_refused(example: Any, options: dict[str, Any], message: str):
    network = function_network(resized("bilinear", {"size": (2, 2), **options}), example)
    with pytest.raises(TvmtuneError, match=message):
        network.to_relax()
