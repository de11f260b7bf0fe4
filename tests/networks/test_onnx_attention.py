"""The attention operators of the ONNX standard and of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_operators import (
    assert_matches_onnxruntime,
    floats,
    operator_network,
    quick_first,
)
from tvmtune.errors import TvmtuneError
from tvmtune.networks.float16 import Float16Network
from tvmtune.networks.onnx.converters.request import constant
from tvmtune.types import Network

pytest.importorskip("onnxruntime")

BATCH, LENGTH, HEADS, SIZE, PAST = 2, 5, 4, 16, 3
WIDTH = HEADS * SIZE


def ints(*values: Any) -> np.ndarray:
    return np.array(values, "int32")


def projected(length: int = LENGTH, keys: int = LENGTH, groups: int = HEADS) -> dict[str, Any]:
    """Queries, keys and values of rank 3."""
    return {
        "q": floats(BATCH, length, WIDTH, seed=1),
        "k": floats(BATCH, keys, groups * SIZE, seed=2),
        "v": floats(BATCH, keys, groups * SIZE, seed=3),
    }


def cache(groups: int = HEADS, room: int = PAST) -> dict[str, Any]:
    return {
        "past_key": floats(BATCH, groups, room, SIZE, seed=4),
        "past_value": floats(BATCH, groups, room, SIZE, seed=5),
    }


def seen(*shape: int) -> np.ndarray:
    """A mask in which each query sees at least the first key."""
    mask = np.random.default_rng(6).random(shape) < 0.6
    mask[..., 0] = True
    return mask


STANDARD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "scale": ({}, {"scale": 0.7}),
    "causal": ({}, {"is_causal": 1}),
    "softcap": ({}, {"softcap": 1.5}),
    "boolean mask": ({"mask": seen(LENGTH, LENGTH)}, {}),
    "float mask": ({"mask": floats(BATCH, 1, LENGTH, LENGTH)}, {}),
    "causal boolean mask": ({"mask": seen(BATCH, 1, LENGTH, LENGTH)}, {"is_causal": 1}),
    "past": ({"mask": None, **cache()}, {"is_causal": 1}),
}


@pytest.mark.parametrize("case", quick_first(STANDARD))
def test_standard_attention(case: str):
    more, attributes = STANDARD[case]
    heads = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
    outputs = ("y", "present_key", "present_value") if "past" in case else ("y",)
    assert_matches_onnxruntime(
        "Attention", projected() | more, opset=23, outputs=outputs, **heads, **attributes
    )


def test_standard_attention_of_rank_4_with_shared_heads_and_other_keys():
    inputs = {
        "q": floats(BATCH, 4, 3, SIZE, seed=1),
        "k": floats(BATCH, 2, 6, SIZE, seed=2),
        "v": floats(BATCH, 2, 6, 10, seed=3),
    }
    assert_matches_onnxruntime("Attention", inputs, opset=23)


@pytest.mark.parametrize("mode", quick_first([3, 0]))
def test_the_scores_of_standard_attention(mode: int):
    assert_matches_onnxruntime(
        "Attention",
        projected() | {"mask": seen(LENGTH, LENGTH)},
        opset=23,
        outputs=("y", "", "", "scores"),
        q_num_heads=HEADS,
        kv_num_heads=HEADS,
        qk_matmul_output_mode=mode,
    )


def test_a_query_that_sees_no_key_gets_zeros():
    mask = seen(LENGTH, LENGTH)
    mask[2] = False
    assert_matches_onnxruntime(
        "Attention", projected() | {"m": mask}, opset=23, q_num_heads=HEADS, kv_num_heads=HEADS
    )


@pytest.mark.parametrize("causal", quick_first([1, 0]))
def test_the_lengths_of_a_cache_outside_of_standard_attention(causal: int):
    inputs = projected(length=2, keys=7) | dict.fromkeys(("mask", "pk", "pv"))
    inputs["valid"] = np.array([4, 7])
    heads = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "is_causal": causal}
    assert_matches_onnxruntime("Attention", inputs, opset=24, **heads)


PADDING: dict[str, np.ndarray] = {
    "keys": seen(BATCH, LENGTH).astype("int32"),
    "queries and keys": seen(BATCH, LENGTH, LENGTH).astype("int32"),
    "lengths": ints(3, LENGTH),
    "ends and starts": ints(4, LENGTH, 1, 0),
}


def merged(width: int = 3 * WIDTH) -> dict[str, Any]:
    return {
        "x": floats(BATCH, LENGTH, 16),
        "weights": floats(16, width, seed=1) / 4,
        "bias": floats(width, seed=2),
    }


@pytest.mark.parametrize("mask", quick_first(PADDING))
@pytest.mark.parametrize("causal", quick_first([1, 0]))
def test_attention_of_onnxruntime_with_padding(mask: str, causal: int):
    inputs = merged() | {"mask": PADDING[mask]}
    assert_matches_onnxruntime("ms.Attention", inputs, num_heads=HEADS, unidirectional=causal)


ATTENTION: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no bias": ({"bias": None}, {}),
    "scale": ({}, {"scale": 0.3, "mask_filter_value": -5.0}),
    "other width of values": (merged(2 * WIDTH + 8), {"qkv_hidden_sizes": [WIDTH, WIDTH, 8]}),
    "bias of scores": (
        {"mask": None, "past": None, "scores": floats(1, HEADS, LENGTH, LENGTH)},
        {"unidirectional": 1},
    ),
    "filter value": (
        {"mask": seen(BATCH, LENGTH).astype("int32")},
        {"mask_filter_value": -2.0},
    ),
}


@pytest.mark.parametrize("constant", quick_first([True, False]))
@pytest.mark.parametrize("case", quick_first(ATTENTION))
def test_attention_of_onnxruntime(case: str, constant: bool):
    more, attributes = ATTENTION[case]
    inputs = merged() | more
    weights = [k for k in ("weights", "bias") if inputs[k] is not None] if constant else []
    assert_matches_onnxruntime(
        "ms.Attention", inputs, constant=weights, num_heads=HEADS, **attributes
    )


@pytest.mark.slow
def test_attention_of_onnxruntime_continues_a_past():
    past = floats(2, BATCH, HEADS, PAST, SIZE, seed=7)
    mask = seen(BATCH, PAST + LENGTH).astype("int32")
    assert_matches_onnxruntime(
        "ms.Attention",
        merged() | {"mask": mask, "past": past},
        outputs=("y", "present"),
        num_heads=HEADS,
        unidirectional=1,
    )


def heads_first(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:2], HEADS, SIZE).transpose(0, 2, 1, 3).copy()


MULTI_HEAD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "scale": ({}, {"scale": 0.4}),
    "causal": ({}, {"unidirectional": 1}),
    "bias": ({"bias": floats(3 * WIDTH)}, {}),
    "lengths": ({"bias": None, "mask": ints(3, LENGTH)}, {}),
    "mask of keys": ({"bias": None, "mask": seen(BATCH, LENGTH).astype("int32")}, {}),
    "mask of queries": ({"bias": None, "mask": PADDING["queries and keys"]}, {}),
    "bias of scores": (
        {"bias": None, "mask": None, "scores": floats(BATCH, HEADS, LENGTH, LENGTH)},
        {},
    ),
    "other keys": (projected(keys=7), {}),
    "split keys": ({k: heads_first(v) for k, v in projected().items() if k != "q"}, {}),
    "past": ({"bias": None, "mask": None, "scores": None, **cache()}, {"unidirectional": 1}),
}


@pytest.mark.parametrize("case", quick_first(MULTI_HEAD))
def test_multi_head_attention(case: str):
    more, attributes = MULTI_HEAD[case]
    outputs = ("y", "present_key", "present_value") if case == "past" else ("y",)
    assert_matches_onnxruntime(
        "ms.MultiHeadAttention", projected() | more, outputs=outputs, num_heads=HEADS, **attributes
    )


GROUPS = 2
TABLE = {"cos": np.cos(floats(16, SIZE // 2, seed=8)), "sin": np.sin(floats(16, SIZE // 2, seed=8))}
ROTARY = {"do_rotary": 1}

GROUPED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "scale and softcap": ({}, {"scale": 0.6, "softcap": 2.0}),
    "window": ({}, {"local_window_size": 2}),
    "rotary": (TABLE, ROTARY),
    "interleaved": (TABLE, ROTARY | {"rotary_interleaved": 1}),
    "smooth": ({}, {"smooth_softmax": 1}),
    "sink": (
        {**dict.fromkeys(("c", "s", "p", "b")), "sink": floats(HEADS, seed=9)},
        {},
    ),
    "bias of scores": (
        {**dict.fromkeys(("c", "s", "p")), "bias": floats(1, HEADS, LENGTH, LENGTH)},
        {},
    ),
}


def grouped(new: int, total: int, *, packed: bool = False, past: bool = False) -> dict[str, Any]:
    inputs = projected(new, new, GROUPS)
    if packed:
        joint = np.concatenate(list(inputs.values()), axis=2)
        inputs = {"q": joint, "k": None, "v": None}
    inputs |= cache(GROUPS) if past else dict.fromkeys(("past_key", "past_value"))
    return inputs | {"last": ints(*[total - 1] * BATCH), "total": ints(total)}


@pytest.mark.slow
@pytest.mark.parametrize("packed", quick_first([True, False]), ids=["packed", "three inputs"])
@pytest.mark.parametrize("case", quick_first(["rotary", *sorted({*GROUPED} - {"rotary"})]))
def test_group_query_attention_of_a_prompt(case: str, packed: bool):
    more, attributes = GROUPED[case]
    assert_matches_onnxruntime(
        "ms.GroupQueryAttention",
        grouped(LENGTH, LENGTH, packed=packed) | more,
        outputs=("y", "present_key", "present_value"),
        num_heads=HEADS,
        kv_num_heads=GROUPS,
        **attributes,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", quick_first(["rotary", "plain", "window", "interleaved", "smooth"])
)
def test_group_query_attention_continues_a_past(case: str):
    more, attributes = GROUPED[case]
    assert_matches_onnxruntime(
        "ms.GroupQueryAttention",
        grouped(1, PAST + 1, past=True) | more,
        constant=["total"],
        outputs=("y", "present_key", "present_value"),
        num_heads=HEADS,
        kv_num_heads=GROUPS,
        **attributes,
    )


@pytest.mark.slow
def test_group_query_attention_of_prompts_of_different_lengths():
    defined = ([0, 0, 0, 1, 1], [0, 1, 2, 0, LENGTH - 1])
    assert_matches_onnxruntime(
        "ms.GroupQueryAttention",
        grouped(LENGTH, LENGTH) | {"last": ints(2, LENGTH - 1)} | TABLE,
        valid=[defined],
        num_heads=HEADS,
        kv_num_heads=GROUPS,
        do_rotary=1,
    )


@pytest.mark.slow
def test_group_query_attention_continues_sequences_of_different_lengths():
    assert_matches_onnxruntime(
        "ms.GroupQueryAttention",
        grouped(1, PAST + 1, past=True) | {"last": ints(1, PAST)} | TABLE,
        constant=["total"],
        outputs=("y", "present_key", "present_value"),
        num_heads=HEADS,
        kv_num_heads=GROUPS,
        do_rotary=1,
    )


@pytest.mark.slow
def test_a_cache_with_room_for_later_tokens():
    inputs = grouped(1, PAST, past=True)
    inputs |= cache(GROUPS, room=PAST + 4)
    assert_matches_onnxruntime(
        "ms.GroupQueryAttention",
        inputs,
        constant=["total"],
        outputs=("y", "present_key", "present_value"),
        num_heads=HEADS,
        kv_num_heads=GROUPS,
    )


@pytest.mark.parametrize("interleaved", quick_first([0, 1]))
@pytest.mark.parametrize("rank", quick_first([3, 4]))
@pytest.mark.parametrize("domain", ["", "ms."])
def test_rotary_embedding(domain: str, rank: int, interleaved: int):
    x = floats(BATCH, LENGTH, WIDTH)
    ids = np.random.default_rng(0).integers(0, 16, (BATCH, LENGTH))
    if rank == 4:
        x = heads_first(x)
    tables = {"cos": TABLE["cos"], "sin": TABLE["sin"]}
    inputs = {"x": x, "ids": ids, **tables} if domain else {"x": x, **tables, "ids": ids}
    heads = {"num_heads": HEADS} if rank == 3 else {}
    assert_matches_onnxruntime(
        f"{domain}RotaryEmbedding", inputs, opset=23, interleaved=interleaved, **heads
    )


@pytest.mark.slow
@pytest.mark.parametrize("interleaved", quick_first([1, 0]))
def test_rotary_embedding_of_a_part_of_each_head(interleaved: int):
    tables = {k: v[:, : SIZE // 4] for k, v in TABLE.items()}
    options = {"rotary_embedding_dim": SIZE // 2, "num_heads": HEADS, "interleaved": interleaved}
    x, ids = floats(BATCH, LENGTH, WIDTH), np.array([2])
    assert_matches_onnxruntime("ms.RotaryEmbedding", {"x": x, "ids": ids, **tables}, **options)
    per_token = {k: v[: BATCH * LENGTH].reshape(BATCH, LENGTH, -1) for k, v in tables.items()}
    assert_matches_onnxruntime("RotaryEmbedding", {"x": x, **per_token}, opset=23, **options)


HALF = {
    "Attention": (
        projected() | {"mask": seen(LENGTH, LENGTH)},
        {"opset": 23, "q_num_heads": HEADS, "kv_num_heads": HEADS, "is_causal": 1},
    ),
    "ms.GroupQueryAttention": (
        grouped(LENGTH, LENGTH),
        {"num_heads": HEADS, "kv_num_heads": GROUPS},
    ),
}


@pytest.mark.parametrize("name", HALF)
def test_masks_are_finite_in_float16(name: str):
    inputs, options = HALF[name]
    half = {
        k: a.astype("float16") if getattr(a, "dtype", None) == "float32" else a
        for k, a in inputs.items()
    }
    assert_matches_onnxruntime(name, half, tolerance=4e-3, **options)
    network, _ = operator_network(name, half, **options)
    assert_constants_are_finite(network)


def test_a_mask_that_hides_all_keys_is_finite_in_float16():
    mask = seen(BATCH, LENGTH).astype("int32")
    mask[1] = 0
    lowest = float(np.finfo("float32").min)  # as exporters write it
    inputs = merged() | {"mask": mask}
    options = {"num_heads": HEADS, "mask_filter_value": lowest}
    half = Float16Network(operator_network("ms.Attention", inputs, **options)[0])
    assert_constants_are_finite(half)
    given = {k: a.astype("float16") if a.dtype == "float32" else a for k, a in inputs.items()}
    assert_equal(run_in_tvm(half, given), half.reference(given), 2e-2)


def assert_constants_are_finite(network: Network) -> None:
    def visit(expression: Any) -> None:
        value = constant(expression)
        if value is not None and value.dtype.kind == "f":
            assert np.isfinite(value).all()

    relax.analysis.post_order_visit(network.to_relax()["main"], visit)


@pytest.mark.slow
@pytest.mark.parametrize("past", [False, True], ids=["no past", "an empty cache"])
def test_positions_of_a_prompt_are_counted_from_the_first(past: bool):
    ids = np.array([[3, 4, 5, 6, 7], [0, 1, 0, 1, 2]])
    inputs = grouped(LENGTH, LENGTH, past=past) | TABLE | {"ids": ids}
    if past:
        inputs |= cache(GROUPS, room=LENGTH + 2)
    assert_matches_onnxruntime(
        "ms.GroupQueryAttention",
        inputs,
        constant=["total"] if past else [],
        outputs=("y", "present_key", "present_value"),
        num_heads=HEADS,
        kv_num_heads=GROUPS,
        do_rotary=1,
    )


def refusal(name: str, inputs: dict[str, Any], **options: Any) -> str:
    network, _ = operator_network(name, inputs, num_heads=HEADS, **options)
    with pytest.raises(TvmtuneError) as raised:
        network.to_relax()
    return str(raised.value)


def test_a_cache_of_open_length_is_refused():
    text = refusal("ms.GroupQueryAttention", grouped(1, PAST + 1, past=True), kv_num_heads=GROUPS)
    assert "node 'the_node' (com.microsoft.GroupQueryAttention, opset 1) of net" in text
    assert "its total_sequence_length must be constant" in text


def test_unsupported_attributes_are_named():
    text = refusal(
        "ms.GroupQueryAttention",
        grouped(LENGTH, LENGTH),
        outputs=("y", "key", "value", "scores"),
        kv_num_heads=GROUPS,
        qk_output=1,
    )
    assert "its attribute qk_output=1 is not supported" in text
