"""Attention is one kernel on CPUs with AVX2 or AVX-512, and equals its definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels import error, scheduled_library
from tvmtune import api
from tvmtune.cpu_features import AVX, has
from tvmtune.networks.bfloat16 import Bfloat16Network
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes import attention

AVX2 = {"mcpu": "haswell"}
OWN: dict[str, str] = {}
"""This machine's vectors, which may be of 512 bits."""
HEADS, QUERIES, KEYS, DEPTH, COLUMNS = 2, 50, 170, 24, 40


def network(
    *steps: Any,
    heads: int = HEADS,
    queries: int = QUERIES,
    keys: int = KEYS,
    columns: int = COLUMNS,
    after: Any = (),
    **operands: Any,
) -> OnnxNetwork:
    """Softmax(steps(q @ k)) @ v. Each step is an operator and its operands, of which ``s`` is the
    scores; ``operands`` are constants (arrays) or further inputs (shapes). ``after``: steps after the
    softmax, whose last result is the weights."""
    inputs = {
        "q": (1, heads, queries, DEPTH),
        "k": (1, heads, DEPTH, keys),
        "v": (1, heads, keys, columns),
        **{name: value for name, value in operands.items() if isinstance(value, tuple)},
    }
    nodes = [helper.make_node("MatMul", ["q", "k"], ["scores"])]
    last = "scores"
    for number, (operator, *names) in enumerate(steps):
        read = [last if name == "s" else name for name in names]
        last = f"step{number}"
        nodes.append(helper.make_node(operator, read, [last]))
    nodes.append(helper.make_node("Softmax", [last], ["weights"], axis=-1))
    last = "weights"
    for operator, *names in after:
        last = f"{operator}/result"
        nodes.append(helper.make_node(operator, names, [last]))
    nodes.append(helper.make_node("MatMul", [last, "v"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, heads, queries, columns))],
        [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in operands.items()
            if not isinstance(value, tuple)
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    return OnnxNetwork(
        helper.make_model(graph, opset_imports=opsets, ir_version=8), name="attention"
    )


def kernels(network: Any, attrs: dict[str, str] = AVX2) -> list[str]:
    return [task.name for task in api.plan(network, attrs=attrs).tasks]


def is_one_kernel(network: Any, attrs: dict[str, str] = AVX2) -> bool:
    return [name.rstrip("0123456789") for name in kernels(network, attrs)] == ["attention"]


def outputs(
    network: OnnxNetwork,
    folder: Path,
    inputs: dict[str, np.ndarray] | None = None,
    attrs: dict[str, str] = AVX2,
) -> tuple[np.ndarray, np.ndarray]:
    """Of its library, and of its reference."""
    library = scheduled_library(network, folder / "attention.so", attrs)
    given = {**library.random_inputs(0), **(inputs or {})}
    return library.run(given)[0], network.reference(given)[0]


SCALE = np.float32(DEPTH**-0.5)
CAUSAL = np.tril(np.ones((1, 1, QUERIES, KEYS), bool), KEYS - QUERIES)
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "scaled": ((("Mul", "s", "c"),), {"c": SCALE}),
    "divided and masked": (
        (("Div", "s", "c"), ("Add", "s", "mask")),
        {"c": 1 / SCALE, "mask": (1, 1, 1, KEYS)},
    ),
    "causal": ((("Where", "t", "s", "low"),), {"t": CAUSAL, "low": np.float32(-1e30)}),
    "a bias for each head": ((("Add", "bias", "s"),), {"bias": (1, HEADS, QUERIES, KEYS)}),
    "a constant bias of each query": (
        (("Sub", "bias", "s"),),
        {"bias": np.linspace(0, 1, QUERIES, dtype="float32").reshape(QUERIES, 1)},
    ),
    "limited": (
        (("Max", "s", "low"), ("Min", "s", "high")),
        {"low": np.float32(-0.5), "high": np.float32(0.5)},
    ),
    "whole tiles": ((), {"queries": 48, "keys": 192, "columns": 64}),
    "many queries": ((("Mul", "s", "c"),), {"c": SCALE, "queries": 500, "keys": 500}),
    "three vectors of columns": ((), {"heads": 1, "columns": 24}),
    "columns that fill no vector": ((), {"columns": 21}),
    "a column": ((), {"columns": 1}),
    "rows of scores a page apart": ((("Mul", "s", "c"),), {"c": SCALE, "keys": 1024}),
}
CASES["a condition that is constant"] = (
    (("Where", "yes", "s", "low"),),
    {"yes": np.array(True), "low": np.float32(-1e30)},
)
QUICK = ("divided and masked", "causal")


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n not in QUICK)],
)
@pytest.mark.parametrize("attrs", [AVX2, OWN], ids=["AVX2", "this machine"])
def test_attention_is_one_kernel_that_equals_its_definition(
    name: str, attrs: dict[str, str], tmp_path: Path
):
    steps, options = CASES[name]
    made = network(*steps, **options)
    if has(api.plan(made, attrs=attrs).device.target, "avx2"):
        assert is_one_kernel(made, attrs)
    got, want = outputs(made, tmp_path, attrs=attrs)
    assert error(got, want) < 1e-5


@pytest.mark.sweep
@pytest.mark.parametrize("attrs", [AVX2, OWN], ids=["AVX2", "this machine"])
@pytest.mark.parametrize("factor", [300, 1e9, 1e12])
def test_large_scores_and_denormal_weights(factor: float, attrs: dict[str, str], tmp_path: Path):
    """Of scores that are rounded in one place and not in another, the largest would differ."""
    made = network(("Mul", "s", "c"), c=np.float32(factor))
    got, want = outputs(made, tmp_path, attrs=attrs)
    assert error(got, want) < 1e-3
    assert np.isfinite(got).all()


def test_queries_all_of_whose_keys_have_the_lowest_score(tmp_path: Path):
    steps = ("Add", "s", "mask"), ("Mul", "s", "c")
    made = network(*steps, mask=(1, 1, QUERIES, KEYS), c=SCALE)
    mask = np.zeros((1, 1, QUERIES, KEYS), "float32")
    mask[..., 3:6, :] = np.finfo("float32").min
    got, want = outputs(made, tmp_path, {"mask": mask})
    assert error(got, want) < 1e-5


def test_queries_without_a_key_get_zeros_where_the_network_says_so(tmp_path: Path):
    made = network(
        ("Add", "s", "mask"),
        after=[("IsNaN", "weights"), ("Where", "IsNaN/result", "zero", "weights")],
        mask=(1, 1, QUERIES, KEYS),
        zero=np.float32(0),
    )
    assert is_one_kernel(made)
    mask = np.zeros((1, 1, QUERIES, KEYS), "float32")
    mask[..., 7, :] = -np.inf
    mask[..., 9, 3:] = -np.inf
    got, want = outputs(made, tmp_path, {"mask": mask})
    assert not got[:, :, 7].any()
    assert error(got, want) < 1e-5


@pytest.mark.parametrize(
    ("made", "attrs"),
    [
        pytest.param(network(keys=attention.FEWEST_KEYS - 1), AVX2, id="few keys"),
        pytest.param(network(queries=1), AVX2, id="a single query"),
        pytest.param(network(columns=256), AVX2, id="many columns"),
        pytest.param(network(), {"mcpu": "nehalem"}, id="SSE"),
        pytest.param(network(), {"mcpu": "sandybridge"}, id="AVX"),
        pytest.param(Bfloat16Network(network()), AVX2, id="bfloat16"),
    ],
)
def test_other_attention_stays_several_kernels(made: Any, attrs: dict[str, str]):
    assert len(kernels(made, attrs)) > 1


def test_boards_with_neon_keep_several_kernels():
    plan = api.plan(network(), "arm", attrs={"board": "rk3399"})
    assert len(plan.tasks) > 1


@pytest.mark.parametrize("cpu", ["znver4", "znver5", "sapphirerapids"])
def test_products_of_many_columns_join_with_32_registers(cpu: str):
    assert is_one_kernel(network(columns=256), {"mcpu": cpu})


def test_weights_that_something_else_reads_stay_an_output():
    made = network()
    model = made.to_onnx()
    import onnx

    model = onnx.load_model_from_string(model)
    shape = (1, HEADS, QUERIES, KEYS)
    model.graph.output.append(helper.make_tensor_value_info("weights", TensorProto.FLOAT, shape))
    assert len(kernels(OnnxNetwork(model, name="weights"))) > 1


@pytest.mark.parametrize(("queries", "keys"), [(197, 197), (1500, 1500), (16, 4096), (4096, 77)])
def test_blocks_fit_the_cache_and_give_each_core_several(queries: int, keys: int):
    tiles = attention.tiles_of(12, queries, max(keys, attention.FEWEST_KEYS), AVX, 2)
    assert tiles is not None
    assert tiles.block % tiles.queries == 0
    one_tile = tiles.block == tiles.queries
    assert one_tile or 4 * tiles.block * keys <= attention.CACHED
    assert one_tile or 12 * -(-queries // tiles.block) >= 2 * attention.FEWEST_BLOCKS
