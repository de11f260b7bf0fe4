"""Reads of PyTorch programs by several indices."""

from __future__ import annotations

from typing import Any

import pytest

from networks.in_tvm import assert_tvm_agrees

torch = pytest.importorskip("torch")

from networks.torch_models import function_network  # noqa: E402


def adjacent(x: Any, i: Any) -> Any:
    return x[:, i, -i - 1], x[..., i + 3, i], x[i, i + 1], x[i, -i - 1, i + 2, i]


def apart(x: Any, i: Any) -> Any:
    return x[i, :, -i - 1], x[:, i, :, -i[:, None] - 1]


def crossed(x: Any, i: Any) -> Any:
    """The first case has the shape of a grid, but its axes are exchanged."""
    return x[:, i[None], (i + 2)[:, None]], x[:, (i + 1)[:, None], -i - 1], x[i[:, None], i]


@pytest.mark.parametrize("function", [adjacent, apart, crossed])
def test_several_indices_select_elements_together(function: Any):
    x, i = torch.zeros(2, 5, 6, 3), torch.zeros(4, dtype=torch.int64)
    assert_tvm_agrees(function_network(function, x, i))


def test_a_grid_is_read_along_one_axis_after_the_other():
    """As resizes are decomposed: the data are not transposed for it."""
    rows, columns = torch.tensor([0, 0, 2, 4]), torch.tensor([5, 1, 1])
    network = function_network(lambda x: x[:, :, rows[:, None], columns], torch.zeros(1, 2, 5, 6))
    text = network.to_relax().script(show_meta=False)
    assert "index_tensor" not in text
    assert_tvm_agrees(network)
