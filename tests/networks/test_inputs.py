"""Random inputs and those from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvmtune.errors import UsageError
from tvmtune.networks.inputs import random_inputs, read_inputs
from tvmtune.types import TensorSpec

SPECS = (TensorSpec("data", (2, 3), "float32"), TensorSpec("ids", (4,), "int64"))
GOOD = {"data": np.zeros((2, 3), np.float32), "ids": np.zeros(4, np.int64)}


def test_floats_are_standard_normal_and_follow_the_seed():
    spec = TensorSpec("x", (100, 100), "float32")
    x = random_inputs([spec], seed=0)["x"]
    assert x.dtype == np.float32
    assert x.std() == pytest.approx(1.0, abs=0.05)
    np.testing.assert_array_equal(x, random_inputs([spec], seed=0)["x"])
    assert not np.array_equal(x, random_inputs([spec], seed=1)["x"])


def test_the_random_stream_is_frozen():
    x = random_inputs([TensorSpec("x", (3,), "float64")], seed=0)["x"]
    np.testing.assert_allclose(x, [1.764052345967664, 0.4001572083672233, 0.9787379841057392])


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("int64", range(2)), ("int32", range(2)), ("bool", range(2)), ("uint8", range(256))],
)
def test_integers_are_valid_as_ids_masks_or_pixels(dtype: str, values: range):
    x = random_inputs([TensorSpec("x", (5000,), dtype)], seed=0)["x"]
    assert x.dtype == dtype
    assert set(x.tolist()) == set(values)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floating_point_dtypes_are_supported(dtype: str):
    assert random_inputs([TensorSpec("x", (2,), dtype)], seed=0)["x"].dtype.name == dtype


def test_a_scalar_is_an_array_without_dimensions():
    assert random_inputs([TensorSpec("x", (), "int64")], seed=0)["x"].shape == ()


def test_a_file_with_the_right_arrays_is_read(tmp_path: Path):
    path = tmp_path / "in.npz"
    np.savez(path, **GOOD)
    found = read_inputs(path, SPECS)
    assert set(found) == {"data", "ids"}
    assert found["ids"].dtype == np.int64


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"data": GOOD["data"]}, "lacks ids; the network takes data: 2x3 float32, ids: 4 int64"),
        (GOOD | {"extra": GOOD["ids"]}, "has the unexpected extra; the network takes data"),
        ({"data": GOOD["data"], "id": GOOD["ids"]}, "lacks ids and has the unexpected id"),
        (GOOD | {"data": np.zeros((3, 2), np.float32)}, "'data' is 3x2 float32, .* 2x3 float32"),
        (GOOD | {"data": np.zeros(6, np.float32)}, "'data' is 6 float32, .* 2x3 float32"),
        (GOOD | {"data": np.zeros((2, 3))}, "'data' is 2x3 float64, .* 2x3 float32"),
        (GOOD | {"ids": np.array("text")}, "'ids' is scalar str"),
    ],
)
def test_unsuitable_arrays_are_refused_with_expected_and_actual(
    tmp_path: Path, arrays: dict[str, np.ndarray], expected: str
):
    path = tmp_path / "in.npz"
    np.savez(path, **arrays)
    with pytest.raises(UsageError, match=expected) as raised:
        read_inputs(path, SPECS)
    assert str(path) in str(raised.value)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="does not exist"):
        read_inputs(tmp_path / "no.npz", SPECS)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 not a zip archive after all"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "in.npz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="damaged or not an .npz file") as raised:
        read_inputs(path, SPECS)
    assert "\n" not in str(raised.value)


def test_a_truncated_file_is_refused(tmp_path: Path):
    path = tmp_path / "in.npz"
    np.savez(path, **GOOD)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UsageError, match="damaged"):
        read_inputs(path, SPECS)


def test_a_single_array_is_refused(tmp_path: Path):
    path = tmp_path / "in.npy"
    np.save(path, GOOD["data"])
    with pytest.raises(UsageError, match="single array.*numpy.savez"):
        read_inputs(path, SPECS)


def test_pickled_objects_are_never_loaded(tmp_path: Path):
    path = tmp_path / "in.npz"
    np.savez(path, data=np.array([{}], dtype=object), ids=GOOD["ids"])
    with pytest.raises(UsageError):
        read_inputs(path, SPECS)


def test_a_directory_is_refused(tmp_path: Path):
    with pytest.raises(UsageError):
        read_inputs(tmp_path, SPECS)
