"""Samples at the positions of a grid, inside of the image and beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from networks.in_tvm import assert_tvm_agrees

torch = pytest.importorskip("torch")

from networks.torch_models import function_network  # noqa: E402


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("mode", "align_corners"),
    [
        ("bilinear", True),
        ("bilinear", False),
        ("nearest", False),
        ("bicubic", True),
        pytest.param("nearest", True, marks=pytest.mark.soak),
        pytest.param("bicubic", False, marks=pytest.mark.soak),
    ],
)
def test_a_grid_names_x_and_y_of_each_sample(mode: str, align_corners: bool):
    def sample(image: Any, grid: Any) -> Any:
        return tuple(
            torch.nn.functional.grid_sample(
                image, grid, mode=mode, padding_mode=padding, align_corners=align_corners
            )
            for padding in ("zeros", "border", "reflection")
        )

    examples = torch.zeros(2, 3, 8, 9), torch.zeros(2, 5, 4, 2)
    assert_tvm_agrees(function_network(sample, *examples))


@pytest.mark.sweep
@pytest.mark.parametrize("extents", [(1, 1), (1, 6)])
def test_reflection_at_an_axis_of_one_element(extents: tuple[int, int]):
    def sample(image: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(
            image, grid, padding_mode="reflection", align_corners=True
        )

    examples = torch.zeros(1, 3, *extents), torch.zeros(1, 5, 4, 2)
    assert_tvm_agrees(function_network(sample, *examples))


@pytest.mark.slow
def test_samples_in_half_precision():
    def sample(image: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(image, grid, align_corners=False) * 2

    examples = torch.zeros(1, 3, 8, 9).half(), torch.zeros(1, 5, 4, 2).half()
    assert_tvm_agrees(function_network(sample, *examples), tolerance=1e-2)
