"""Attention of few queries is one kernel on CPUs with AVX2 or AVX-512, and equals its definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import error, scheduled_library
from tvmtune import api
from tvmtune.passes import few_queries
from tvmtune.runtime.library import Library

torch = pytest.importorskip("torch")

from networks.torch_models import function_network  # noqa: E402

AVX2 = {"mcpu": "haswell"}
OWN: dict[str, str] = {}
"""This machine's vectors, which may be of 512 bits."""
INFINITY = float("inf")


def attend(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Each head of k and v is that of several heads of q, side by side."""
    batch, heads, keys, _ = k.shape
    times = q.shape[1] // heads

    def repeated(x: Any) -> Any:
        if times == 1:
            return x
        spread = x[:, :, None].expand(batch, heads, times, keys, x.shape[-1])
        return spread.reshape(batch, heads * times, keys, x.shape[-1])

    scores = q @ repeated(k).transpose(2, 3) * q.shape[-1] ** -0.5
    if mask is not None:
        is_condition = mask.dtype == torch.bool
        scores = torch.where(mask, scores, -INFINITY) if is_condition else scores + mask
    return scores.softmax(-1) @ repeated(v)


def network(
    heads: int = 6,
    shared: int = 2,
    queries: int = 1,
    keys: int = 256,
    depth: int = 32,
    columns: int = 64,
    batch: int = 1,
    mask: tuple[int, ...] | None = None,
    condition: bool = False,
    function: Any = attend,
) -> Any:
    tensors = [
        torch.zeros(batch, heads, queries, depth),
        torch.zeros(batch, shared, keys, depth),
        torch.zeros(batch, shared, keys, columns),
    ]
    if mask is not None:
        tensors.append(torch.zeros(mask, dtype=torch.bool if condition else torch.float32))
    return function_network(function, *tensors)


def kernels(made: Any, attrs: dict[str, str] = AVX2) -> list[str]:
    return [task.name.rstrip("0123456789") for task in api.plan(made, attrs=attrs).tasks]


def outputs(
    made: Any, folder: Path, attrs: dict[str, str], **given: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of its library, and of its reference."""
    library = scheduled_library(made, folder / "attention.so", attrs)
    inputs = {**library.random_inputs(0), **given}
    return library.run(inputs)[0], made.reference(inputs)[0]


CASES: dict[str, dict[str, Any]] = {
    "shared by three heads, masked": {"mask": (1, 1, 1, 256), "condition": True},
    "not shared": {"shared": 6, "mask": (1, 6, 1, 256)},
    "shared by all": {"shared": 1, "heads": 8, "depth": 64},
    "seven heads": {"heads": 14, "keys": 512},
    "several queries, each with its mask": {"queries": 4, "mask": (1, 1, 4, 256)},
    "several queries of several heads": {"queries": 2, "mask": (2, 6, 2, 256), "batch": 2},
    "a last chunk that is not full": {"keys": 77, "mask": (1, 1, 1, 77)},
    "more keys than chunks hold": {"keys": 1000, "queries": 2},
    "columns of several tiles": {"columns": 256, "depth": 128},
}
QUICK = ("shared by three heads, masked", "a last chunk that is not full")


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n not in QUICK)],
)
@pytest.mark.parametrize("attrs", [AVX2, OWN], ids=["AVX2", "this machine"])
def test_attention_is_one_kernel_that_equals_its_definition(
    name: str, attrs: dict[str, str], tmp_path: Path
):
    options = CASES[name]
    made = network(**options)
    assert "few_queries_attention" in kernels(made)
    assert not any("matmul" in kernel for kernel in kernels(made))
    given = {}
    if options.get("condition"):
        given = {"x_3": np.arange(256).reshape(1, 1, 1, 256) < 130}
    got, want = outputs(made, tmp_path, attrs, **given)
    assert error(got, want) < 1e-5


@pytest.mark.parametrize(
    "attrs", [pytest.param(AVX2, marks=pytest.mark.slow), OWN], ids=["AVX2", "this machine"]
)
def test_chunks_that_no_query_sees_are_not_read(attrs: dict[str, str], tmp_path: Path):
    made = network(queries=2, keys=512, mask=(1, 1, 2, 512), condition=True)
    mask = np.zeros((1, 1, 2, 512), bool)
    mask[:, :, 0, 130:140] = True
    mask[:, :, 1, [140, 511]] = True
    values = np.random.default_rng(0).standard_normal((1, 2, 512, 64), "float32")
    got, want = outputs(made, tmp_path, attrs, x_3=mask, x_2=values)
    assert error(got, want) < 1e-5
    spoiled = values.copy()
    spoiled[:, :, :128] = np.nan
    library = Library.open(tmp_path / "attention.so")
    inputs = {**library.random_inputs(0), "x_3": mask, "x_2": spoiled}
    assert (library.run(inputs)[0] == got).all()


@pytest.mark.slow
def test_queries_that_see_no_key_are_not_a_number(tmp_path: Path):
    made = network(queries=2, mask=(1, 1, 2, 256), condition=True)
    mask = np.zeros((1, 1, 2, 256), bool)
    mask[..., 1, 200] = True
    got, want = outputs(made, tmp_path, OWN, x_3=mask)
    assert np.isnan(got[:, :, 0]).all()
    assert np.isnan(want[:, :, 0]).all()
    assert error(got[:, :, 1], want[:, :, 1]) < 1e-5


@pytest.mark.slow
def test_keys_whose_chunk_is_masked_do_not_count(tmp_path: Path):
    made = network(mask=(1, 1, 1, 256))
    mask = np.full((1, 1, 1, 256), -np.inf, "float32")
    mask[..., 5] = 0
    got, want = outputs(made, tmp_path, OWN, x_3=mask)
    assert error(got, want) < 1e-5


@pytest.mark.slow
def test_queries_all_of_whose_keys_are_masked_are_not_a_number(tmp_path: Path):
    made = network(queries=2, mask=(1, 1, 2, 256))
    mask = np.zeros((1, 1, 2, 256), "float32")
    mask[..., 0, :] = -np.inf
    got, want = outputs(made, tmp_path, OWN, x_3=mask)
    assert np.isnan(got[:, :, 0]).all()
    assert np.isnan(want[:, :, 0]).all()
    assert error(got[:, :, 1], want[:, :, 1]) < 1e-5


def test_keys_that_are_all_hidden_by_the_lowest_number_count_alike(tmp_path: Path):
    """As in transformers' masks, of texts that are padded at the left."""
    made = network(queries=2, mask=(1, 1, 2, 256))
    mask = np.zeros((1, 1, 2, 256), "float32")
    mask[..., 0, :] = mask[..., 1, 40:] = np.finfo("float32").min
    got, want = outputs(made, tmp_path, OWN, x_3=mask)
    assert np.isfinite(got).all()
    assert error(got, want) < 1e-5


@pytest.mark.slow
def test_they_get_zeros_where_the_network_says_so(tmp_path: Path):
    def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
        weights = (q @ k.transpose(2, 3) + mask).softmax(-1)
        return torch.where(weights.isnan(), 0.0, weights) @ v

    made = network(heads=2, mask=(1, 1, 1, 256), function=attention)
    assert "few_queries_attention" in kernels(made)
    mask = np.full((1, 1, 1, 256), -np.inf, "float32")
    got, _ = outputs(made, tmp_path, OWN, x_3=mask)
    assert not got.any()


@pytest.mark.slow
def test_a_score_that_is_not_a_number_spoils_only_its_query(tmp_path: Path):
    made = network(queries=2, mask=(1, 1, 2, 256))
    mask = np.zeros((1, 1, 2, 256), "float32")
    mask[..., 0, 200] = np.nan
    got, want = outputs(made, tmp_path, OWN, x_3=mask)
    assert np.isnan(got[:, :, 0]).all()
    assert error(got[:, :, 1], want[:, :, 1]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e3, 1e9])
def test_large_scores(factor: float, tmp_path: Path):
    def attention(q: Any, k: Any, v: Any) -> Any:
        return (q @ k.transpose(2, 3) * factor).softmax(-1) @ v

    got, want = outputs(network(heads=2, function=attention), tmp_path, OWN)
    assert np.isfinite(got).all()
    assert error(got, want) < 1e-3


def transposed(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.reshape(1, 2, 32, 256)).softmax(-1) @ v


@pytest.mark.parametrize(
    ("made", "attrs"),
    [
        pytest.param(network(keys=few_queries.FEWEST_KEYS - 1), AVX2, id="few keys"),
        pytest.param(network(queries=6), AVX2, id="many queries"),
        pytest.param(network(depth=20), AVX2, id="columns that fill no vector"),
        pytest.param(network(heads=2, function=transposed), AVX2, id="keys in columns"),
        pytest.param(network(), {"mcpu": "nehalem"}, id="SSE"),
    ],
)
def test_other_attention_stays_several_kernels(made: Any, attrs: dict[str, str]):
    assert not any("few_queries" in kernel for kernel in kernels(made, attrs))
