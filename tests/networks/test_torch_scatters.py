"""Scatters and assignments to indices in PyTorch programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from networks.in_tvm import run_in_tvm
from tvmtune.errors import TvmtuneError

torch = pytest.importorskip("torch")

from networks.torch_models import assert_correct, function_network  # noqa: E402

IDS = torch.tensor([[0, 2, 1], [2, 2, 0]])
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return torch.from_numpy(RNG.standard_normal(shape).astype("float32"))


@pytest.mark.slow
def test_indices_smaller_than_the_tensor():
    def scatters(x: Any, ids: Any, y: Any) -> Any:
        return (
            x.scatter(0, ids, y),
            x.scatter(1, ids, 2.5),
            x.scatter_add(1, ids, y),
            x.scatter(0, ids, y, reduce="multiply"),
            x.scatter(1, ids, 2.0, reduce="add"),
        )

    assert_correct(scatters, floats(3, 5), IDS, floats(2, 4))


@pytest.mark.sweep
@pytest.mark.parametrize("includes_self", [True, False])
def test_reductions_with_and_without_the_tensors_own_values(includes_self):
    def scatters(x: Any, ids: Any, y: Any) -> Any:
        kinds = ["sum", "prod", "mean", "amax", "amin"]
        whole = (x * 10).int(), (y * 10).int()
        return (
            *(x.scatter_reduce(1, ids, y, kind, include_self=includes_self) for kind in kinds),
            whole[0].scatter_reduce(0, ids, whole[1], "amax", include_self=includes_self),
        )

    assert_correct(scatters, floats(3, 4), IDS, floats(2, 3))


@pytest.mark.slow
def test_sums_of_rows_over_the_edges_of_a_graph():
    def messages(x: Any, edges: Any) -> Any:
        sources, targets = edges
        rows = targets[:, None].expand(-1, x.shape[1])
        sums = torch.zeros_like(x).scatter_add(0, rows, x[sources])
        means = torch.zeros_like(x).scatter_reduce(0, rows, x[sources], "mean", include_self=False)
        return sums, means, torch.zeros_like(x).index_add(0, targets, x[sources])

    assert_correct(messages, floats(7, 5), torch.from_numpy(RNG.integers(0, 7, (2, 20))))


@pytest.mark.slow
def test_assignments_to_some_axes_whether_adjacent_or_not():
    def put(x: Any, ids: Any, y: Any) -> Any:
        results = [x.clone() for _ in range(6)]
        results[0][ids] = 1.0
        results[1][:, ids] = y
        results[2][:, :, ids[0]] = 3.0
        results[3][ids[0], :, ids[1]] = y[0, 0, :, 0]
        results[4][:, ids[0], -ids[1] - 1] = y[0, 0, :, :3]
        results[5].index_put_((ids, ids), y[0, 0, 0], accumulate=True)
        return tuple(results)

    assert_correct(put, floats(3, 3, 4), IDS, floats(3, 2, 3, 4))


@pytest.mark.slow
def test_assignments_by_a_mask():
    def put(x: Any, row: Any) -> Any:
        results = [x.clone() for _ in range(7)]
        results[0][x > 0] = 2.0
        results[1][x[:, 0, 0] > 0] = x.sum()
        results[2][x[:, :, 0] > 0] = row
        results[3][:, x[0, :, 0] > 0] = row[0]
        results[4][:, x[0, :, 0] > 0] = x[:, :1]
        results[5][..., row > 0] = 1.0
        results[6].index_put_((x[:, 0, 0] > 0,), row, accumulate=True)
        return tuple(results)

    assert_correct(put, floats(5, 4, 3), floats(3))


def test_values_for_each_element_that_a_mask_selects_are_refused():
    def put(x: Any, values: Any) -> Any:
        return x.index_put((x > 0,), values)

    tensors = torch.tensor([-1.0, 2.0, 3.0]), floats(2)
    network = function_network(put, *tensors)
    with pytest.raises(TvmtuneError, match="separate value for each selected element"):
        network.to_relax()


def test_a_mask_of_bytes_is_not_taken_for_indices():
    def put(x: Any, mask: Any) -> Any:
        return x.index_put((mask,), torch.tensor(2.0))

    tensors = floats(3), torch.tensor([0, 1, 1], dtype=torch.uint8)
    network = function_network(put, *tensors)
    with pytest.raises(TvmtuneError, match="supports only bool"):
        network.to_relax()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_more_updates_of_an_element_than_its_dtype_can_count(dtype: Any):
    def largest(x: Any, ids: Any, y: Any) -> Any:
        return x.scatter_reduce(0, ids, y, "amax", include_self=False)

    many = torch.full((256,), 1, dtype=dtype)
    assert_correct(largest, torch.tensor([100, 7], dtype=dtype), torch.zeros(256).long(), many)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
@pytest.mark.parametrize("kind", ["sum", "prod", "amax", "amin"])
def test_reductions_in_64_bits(kind: str, dtype: Any):
    def reduced(x: Any, ids: Any, y: Any) -> Any:
        return x.scatter_reduce(1, ids, y, kind, include_self=False)

    x, y = ((10 * floats(*shape)).to(dtype) for shape in ((3, 4), (2, 3)))
    assert_correct(reduced, x, IDS, y)


@pytest.mark.slow
def test_sums_in_half_precision_are_added_in_float32():
    def sums(x: Any, ids: Any, y: Any) -> Any:
        mean = x.scatter_reduce(0, ids, y, "mean", include_self=False)
        return x.scatter_add(0, ids, y), mean, x.index_put((ids,), y, accumulate=True)

    x, y = torch.zeros(2, dtype=torch.float16), torch.ones(3000, dtype=torch.float16)
    network = function_network(sums, x, torch.zeros(3000).long(), y)
    given = [x.numpy(), np.zeros(3000, "int64"), y.numpy()]
    inputs = {spec.name: array for spec, array in zip(network.inputs, given, strict=True)}
    found = run_in_tvm(network, inputs)
    assert [float(each[0]) for each in found] == [3000, 1, 3000]


@pytest.mark.slow
def test_truth_values():
    def scatters(x: Any, ids: Any, y: Any) -> Any:
        kinds = ["amax", "amin"]
        reduced = [
            x.scatter_reduce(0, ids, y, kind, include_self=own)
            for kind in kinds
            for own in (True, False)
        ]
        put = x.index_put((ids,), y, accumulate=True)
        return (*reduced, x.scatter(0, ids, y), put, x.index_put((x,), y[0], accumulate=True))

    x, y = (torch.from_numpy(RNG.integers(0, 2, n).astype(bool)) for n in (8, 6))
    assert_correct(scatters, x, torch.tensor([0, 3, 3, 5, 0, 1]), y)


@pytest.mark.slow
def test_no_indices_and_no_axes():
    def scatters(x: Any, ids: Any, y: Any) -> Any:
        one = x[0, 0]
        return (
            x.scatter(0, ids[:0], y),
            x.index_put((ids[:0, 0],), y[:0]),
            x.index_add(0, ids[:0, 0], y[:0]),
            one.scatter(0, ids[0, 0] * 0, y[0, 0]),
            one.scatter_add(0, ids[0, :1] * 0, y[0, :1]),
        )

    assert_correct(scatters, floats(3, 4), IDS, floats(2, 4))
