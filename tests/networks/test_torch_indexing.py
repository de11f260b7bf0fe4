"""Lookups in PyTorch programs by several indices at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from networks.torch_models import assert_correct, function_network  # noqa: E402

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return torch.from_numpy(RNG.standard_normal(shape).astype("float32"))


@pytest.mark.slow
def test_pairs_of_features_as_dlrm_takes_them():
    rows, columns = torch.tril_indices(4, 4, offset=-1)

    def interactions(x: Any) -> Any:
        products = x @ x.transpose(1, 2)
        return products[:, rows, columns]

    x = torch.from_numpy(RNG.integers(-4, 5, (2, 4, 3)).astype("float32"))
    assert_correct(interactions, x)


@pytest.mark.slow
def test_indices_beside_other_axes_are_broadcast_and_applied_together():
    def lookups(x: Any, i: Any, j: Any) -> Any:
        return (
            x[:, i, j],
            x[:, i[:, None], j],
            x[:, i[None, :], j[:, None]],
            x[:, i[:2, None, None], j[:, None], i[:2]],
            x[i, j],
            x[..., i, j],
        )

    assert_correct(lookups, floats(3, 5, 5, 4), torch.tensor([2, 0, 1]), torch.tensor([1, 3, 0]))


@pytest.mark.slow
def test_axes_of_indices_that_are_apart_come_first():
    def lookups(x: Any, i: Any, j: Any) -> Any:
        return x[i, :, j], x[:, i, :, j], x[i[:, None], :, :, j]

    assert_correct(lookups, floats(3, 4, 5, 6), torch.tensor([2, 0]), torch.tensor([1, 3]))


@pytest.mark.slow
def test_negative_indices_count_from_the_end():
    def lookups(x: Any, i: Any, j: Any) -> Any:
        return x[:, i, j], x[i, j], x[i, :, j], x[:, i]

    i, j = torch.tensor([-1, 0, -3]), torch.tensor([2, -4, -1], dtype=torch.int32)
    assert_correct(lookups, floats(3, 4, 5), i, j)


@pytest.mark.slow
def test_rows_and_columns_are_read_one_after_the_other():
    """Along an axis each: no index for every element of the result."""
    rows, columns = torch.tensor([0, -1, 2]), torch.tensor([3, 1])
    network = function_network(lambda x: x[:, rows[:, None], columns], torch.zeros(2, 3, 4))
    assert network.to_relax().script(show_meta=False).count("R.take(") == 2
    assert_correct(
        lambda x: (x[:, rows[:, None], columns], x[rows[:, None], columns]), floats(3, 4, 5)
    )


def in_slices(x: Any, y: Any) -> Any:
    x = x.clone()
    x[1:] = y[:2]
    x[:, -2:] = 1
    x[..., 1:3] *= 2
    return x


def in_strides(x: Any, y: Any) -> Any:
    return torch.slice_scatter(x, y[:, ::2], 1, step=2), torch.slice_scatter(x, y[:2], 0, 0, 3, 2)


def in_one_place(x: Any, y: Any) -> Any:
    return torch.select_scatter(x, y[:, 0], 1, -1), torch.select_scatter(x, y[..., 1], 2, 0)


def in_all_or_none(x: Any, y: Any) -> Any:
    return torch.slice_scatter(x, y, 1), torch.slice_scatter(x, y[:, :0], 1, 2, 2)


@pytest.mark.sweep
@pytest.mark.parametrize("assignment", [in_slices, in_strides, in_one_place, in_all_or_none])
def test_assignments_to_slices(assignment: Any):
    assert_correct(assignment, floats(3, 4, 5), floats(3, 4, 5))


def test_a_number_in_another_dtype_is_assigned_to_a_slice():
    def assign(x: Any, y: Any) -> Any:
        x = x.clone()
        x[1:3] = y
        return x

    assert_correct(assign, torch.arange(6), torch.tensor([2.5, 3.5]))
