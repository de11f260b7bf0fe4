"""PyTorch's scaled dot-product attention, imported whole, compared with PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from kernels import this_machine
from networks.in_tvm import assert_equal, assert_tvm_agrees, run_in_tvm
from tvmtune import api
from tvmtune.networks.inputs import random_inputs
from tvmtune.passes import pipeline

torch = pytest.importorskip("torch")

from networks.torch_models import function_network  # noqa: E402

HEADS, QUERIES, KEYS, COLUMNS = 4, 7, 9, 8


def attention(**options: Any) -> Any:
    def function(q: Any, k: Any, v: Any, *mask: Any) -> Any:
        given = {"attn_mask": mask[0]} if mask else {}
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **given, **options)

    return function


def operands(*heads: int, queries: int = QUERIES, keys: int = KEYS, keys_heads: int = 0) -> Any:
    shared = (*heads[:-1], keys_heads) if keys_heads else heads
    return (
        torch.zeros(*heads, queries, COLUMNS),
        torch.zeros(*shared, keys, COLUMNS),
        torch.zeros(*shared, keys, COLUMNS + 2),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("heads", [(2, HEADS), (HEADS,), (1, 2, HEADS)], ids=str)
def test_operands_of_any_rank(heads: tuple[int, ...]):
    assert_tvm_agrees(function_network(attention(), *operands(*heads)))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "options",
    [{"is_causal": True}, {"scale": 0.5}, {"scale": 2, "is_causal": True}],
    ids=str,
)
def test_options(options: dict[str, Any]):
    assert_tvm_agrees(function_network(attention(**options), *operands(2, HEADS)))


@pytest.mark.slow
def test_heads_that_share_keys():
    shared = operands(2, HEADS, keys_heads=2)
    assert_tvm_agrees(function_network(attention(enable_gqa=True), *shared))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "shape", [(2, 1, QUERIES, KEYS), (QUERIES, KEYS), (2, 1, 1, KEYS)], ids=str
)
def test_masks_that_are_added(shape: tuple[int, ...]):
    assert_tvm_agrees(function_network(attention(), *operands(2, HEADS), torch.zeros(shape)))


def test_queries_without_a_key_get_zeros():
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    made = function_network(attention(), *operands(2, HEADS), mask)
    inputs = random_inputs(made.inputs, 0)
    inputs[made.inputs[-1].name][3] = False
    (got,) = run_in_tvm(made, inputs)
    assert not got[:, :, 3].any()
    assert_equal([got], made.reference(inputs))


@pytest.mark.slow
def test_an_encoder_layer():
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.1)
    assert_tvm_agrees(function_network(layer.eval(), torch.zeros(2, 10, 16)))


@pytest.mark.parametrize(
    "function",
    [
        attention(),
        attention(is_causal=True),
        lambda q, k, v: (q @ k.transpose(-1, -2) * 0.3).softmax(-1) @ v,
    ],
    ids=["whole", "causal", "written out"],
)
def test_it_becomes_one_kernel_with_AVX2(function: Any):
    made = function_network(
        function, *operands(1, HEADS, queries=30, keys=170)[:2], torch.zeros(1, HEADS, 170, 16)
    )
    tasks = api.plan(made, attrs={"mcpu": "haswell"}).tasks
    assert sum(task.name.startswith("attention") for task in tasks) == 1


@pytest.mark.slow
def test_products_keep_their_axes():
    made = function_network(lambda x, y: x @ y, torch.zeros(2, 3, 4, 5), torch.zeros(3, 5, 6))
    graph = pipeline.prepare(made, this_machine(), "NHWC").graph
    assert "reshape" not in str(graph)
    assert_tvm_agrees(made)
    assert_tvm_agrees(
        function_network(lambda x, y: (x @ y, y @ y), torch.zeros(2, 3, 4), torch.zeros(4))
    )
