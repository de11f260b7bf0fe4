"""Sums, means and maxima over bags of embeddings, compared with PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from networks.torch_models import assert_correct, function_network  # noqa: E402

MODES = ["sum", "mean", "max"]
INDICES = torch.tensor([3, 1, 1, 8, 0, 3, 9, 2, 5, 5])
OFFSETS = torch.tensor([0, 3, 3, 7])
"""Of bags of 3, 0, 4 and 3."""


def bag(mode: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.EmbeddingBag(10, 8, mode=mode, **options).requires_grad_(False)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", MODES)
def test_bags_of_different_sizes(mode: str):
    layer, skipping = bag(mode), bag(mode, padding_idx=3)
    assert_correct(lambda i, o: (layer(i, o), skipping(i, o)), INDICES, OFFSETS)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", MODES)
def test_bags_of_one_size(mode: str):
    layer, skipping = bag(mode), bag(mode, padding_idx=3)
    assert_correct(lambda i: (layer(i), skipping(i)), INDICES.reshape(5, 2))
    assert_correct(lambda i: skipping(i), torch.full((2, 3), 3))


@pytest.mark.sweep
@pytest.mark.parametrize("index", ["int64", "int32"])
def test_a_last_offset_and_weights_of_samples(index: str):
    layer = bag("sum", include_last_offset=True)
    dtype = getattr(torch, index)
    weights = torch.linspace(-1, 1, 10)
    offsets = torch.cat([OFFSETS, torch.tensor([10])])
    assert_correct(
        lambda i, o, w: layer(i, o, per_sample_weights=w),
        INDICES.to(dtype),
        offsets.to(dtype),
        weights,
    )


def test_random_indices_are_rows_and_random_bags_begin_at_0():
    layer = bag("mean")
    network = function_network(lambda i, o: layer(i, o), INDICES, OFFSETS)
    assert network.ranges == {"x_0": (0, 9), "x_1": (0, 0)}
