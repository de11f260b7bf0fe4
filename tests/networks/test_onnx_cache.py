"""Decoders in ONNX whose cache of keys and values has a constant size keep it as state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmtune
from kernels import error
from tvmtune import api
from tvmtune.networks.onnx import cache_names
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.runtime.library import Library
from tvmtune.types import State, TensorSpec

HEADS, GROUPS, SIZE, ROOM = 4, 2, 16, 96


def decoder() -> OnnxNetwork:
    """A step of attention as onnxruntime-genai's builder exports it: the number of tokens is the sum of
    a mask, and the room of the cache its length."""
    cache = [1, GROUPS, ROOM, SIZE]
    width = (HEADS + 2 * GROUPS) * SIZE
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "axis"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "one"], ["last64"]),
        helper.make_node("Cast", ["last64"], ["last"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            ["x", "", "", "past_key_values.0.key", "past_key_values.0.value", "last", "total"],
            ["y", "present.0.key", "present.0.value"],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=GROUPS,
        ),
    ]
    kinds = TensorProto
    inputs = [
        ("x", kinds.FLOAT, [1, 1, width]),
        ("attention_mask", kinds.INT64, [1, ROOM]),
        ("past_key_values.0.key", kinds.FLOAT, cache),
        ("past_key_values.0.value", kinds.FLOAT, cache),
    ]
    outputs = [
        ("y", kinds.FLOAT, [1, 1, HEADS * SIZE]),
        ("present.0.key", kinds.FLOAT, cache),
        ("present.0.value", kinds.FLOAT, cache),
    ]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        [
            helper.make_tensor("axis", kinds.INT64, [1], [1]),
            helper.make_tensor("one", kinds.INT64, [1], [1]),
            helper.make_tensor("total", kinds.INT32, [1], [ROOM]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return OnnxNetwork(model, name="decoder")


def feed(tokens: int) -> dict[str, np.ndarray]:
    """The step of the last of so many tokens."""
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((1, 1, (HEADS + 2 * GROUPS) * SIZE), "float32")
    return {"x": x, "attention_mask": (np.arange(ROOM)[None] < tokens).astype("int64")}


@pytest.fixture(scope="module")
def network() -> OnnxNetwork:
    pytest.importorskip("onnxruntime")
    return decoder()


@pytest.fixture(scope="module")
def library(network: OnnxNetwork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "decoder.so"
    api.compile_untuned(api.plan(network), path)
    return path


def test_steps_equal_those_of_onnx_runtime(network: OnnxNetwork, library: Path):
    past: dict[str, Any] = {
        name: np.zeros((1, GROUPS, ROOM, SIZE), "float32") for name in network.state
    }
    with tvmtune.InferenceSession(library) as session:
        assert [arg.name for arg in session.get_outputs()] == ["y"]
        for tokens in range(1, ROOM + 1):
            want, *present = network.reference(feed(tokens) | past)
            (got,) = session.run(None, feed(tokens))
            assert error(got, want) < 1e-5
            past = dict(zip(past, present, strict=True))
        for name, value in session.get_state().items():
            np.testing.assert_allclose(value, past[name], atol=1e-6)


def test_the_kernel_is_that_of_few_queries_and_the_cache_changes_in_place(library: Path):
    opened = Library.open(library)
    opened.set_inputs(feed(5))
    calls = {row.name: row.calls for row in opened.profile(repeat=1)}
    assert any(name.startswith("few_queries_attention") for name in calls)
    assert sum(count for name, count in calls.items() if name.endswith("_in_place")) == 2


def test_a_session_that_is_given_the_cache_returns_it(network: OnnxNetwork, library: Path):
    """As programs for ONNX Runtime do."""
    past = {
        name: np.random.default_rng(0).standard_normal((1, GROUPS, ROOM, SIZE), "float32")
        for name in network.state
    }
    with tvmtune.InferenceSession(library) as session:
        (before,) = session.run(None, feed(1))
        names = ["present.0.value", "y"]
        value, y = session.run(names, feed(ROOM) | past)
        want = network.reference(feed(ROOM) | past)
        assert error(value, want[2]) < 1e-6
        assert error(y, want[0]) < 1e-5
        session.reset()
        assert (session.run(None, feed(1))[0] == before).all()


def spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, "float32")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.11.decoder.value", "present.11.decoder.value"),
        ("past_0", "present_0"),
        ("past_key_3", "present_key_3"),
    ],
)
def test_names_of_caches(before: str, after: str):
    found = cache_names.state([spec(before, 1, 2)], [spec("y"), spec(after, 1, 2)])
    assert found == {before: State(output=after)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (spec("past_key_values.0.key", 1, 2), spec("present.0.key", 1, 3)),
        (spec("past_key_values.0.key", 1, 2), spec("present.1.key", 1, 2)),
        (spec("past_days", 7), spec("present_days", 7)),
        (spec("x", 1), spec("y", 1)),
    ],
)
def test_other_inputs_are_no_caches(before: TensorSpec, after: TensorSpec):
    assert not cache_names.state([before], [after])
