"""Random integers of PyTorch programs are valid for everything that they index."""

from __future__ import annotations

from typing import Any

import pytest

from tvmtune.networks.inputs import inputs_of
from tvmtune.networks.torch.network import TorchNetwork

torch = pytest.importorskip("torch")

from networks.torch_models import Function  # noqa: E402


def network(function: Any, *examples: Any, shapes: Any = None, dynamic: Any = None) -> TorchNetwork:
    program = torch.export.export(
        Function(function).eval(), examples, dynamic_shapes=(dynamic,) if dynamic else None
    )
    return TorchNetwork(program, name="net", label="net.pt2", shapes=shapes)


def under(context: Any, function: Any) -> Any:
    with context:
        return function()


def test_ids_take_the_range_of_their_table_and_masks_stay_zeros_and_ones():
    embedding = torch.nn.Embedding(1000, 4)

    def tokens(ids: Any, mask: Any, x: Any) -> Any:
        return embedding(ids.reshape(-1)[1:]) * mask[0], x

    ids = torch.zeros(2, 8, dtype=torch.int64)
    found = network(tokens, ids, torch.ones(1, 4, dtype=torch.int64), torch.zeros(3))
    assert found.ranges == {"x_0": (0, 999)}
    inputs = list(inputs_of(found, 0).values())
    assert inputs[0].max() > 500
    assert set(inputs[1].reshape(-1).tolist()) <= {0, 1}


def test_edges_of_a_graph_are_between_all_of_its_nodes():
    def messages(x: Any, edges: Any) -> Any:
        sources, targets = edges
        rows = targets[:, None].expand(-1, 4)
        return torch.zeros_like(x).scatter_add(0, rows, x[sources]), x.index_add(
            0, targets, x[sources]
        )

    found = network(messages, torch.zeros(30, 4), torch.zeros(2, 50, dtype=torch.int64))
    assert found.ranges == {"x_1": (0, 29)}


def test_a_mask_that_selects_elements_is_no_index():
    def put(x: Any, mask: Any) -> Any:
        return x.index_put((mask,), torch.tensor(2.0))

    assert network(put, torch.zeros(9, 7), torch.zeros(9, 7, dtype=torch.bool)).ranges == {}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.gather(1, i),
        lambda x, i: x.index_select(1, i[0]),
        lambda x, i: x[:, i],
        lambda x, i: x.index_put((i, i), x[0, 0]),
        lambda x, i: torch.nn.functional.one_hot(i, 7),
        lambda x, i: torch.nn.functional.embedding(i, x.t()),
        lambda x, i: x.clone().index_fill_(1, i[0], 2.0),
        lambda x, i: torch.take_along_dim(x[:3], i, 1),
        lambda x, i: torch.take(x[0], i),
        lambda x, i: x[:, torch.cat([i, i])],
        lambda x, i: x[:, torch.where(i < 3, i, i - 1)],
        lambda x, i: under(torch.no_grad(), lambda: x[:, i]),
        lambda x, i: x[:, under(torch.autocast("cpu", torch.bfloat16), i.t)],
    ],
    ids=[
        "gather",
        "index_select",
        "index",
        "index_put",
        "one_hot",
        "embedding",
        "index_fill_",
        "take_along_dim",
        "take",
        "cat",
        "where",
        "no_grad",
        "autocast",
    ],
)
def test_indices_are_within_the_smallest_axis_that_they_index(function: Any):
    ids = torch.zeros(3, 2, dtype=torch.int64)
    assert network(function, torch.zeros(9, 7), ids).ranges == {"x_1": (0, 6)}


def test_what_indexes_an_empty_axis_has_no_range():
    def put(x: Any, ids: Any) -> Any:
        return x[:0].index_add(0, ids[:0], x[:0]).sum() + x

    assert network(put, torch.zeros(9, 7), torch.zeros(3, dtype=torch.int64)).ranges == {}
