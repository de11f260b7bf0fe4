"""Scatters into a network's state change it in place where nothing reads the old values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmtune import api
from tvmtune.runtime.library import Library

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tvmtune.networks.torch.network import TorchNetwork  # noqa: E402

SHAPE = (3, 500, 16)


class Rows(nn.Module):
    """Changes rows of its buffer by ``function``, which returns the outputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("rows", torch.zeros(SHAPE))

    def forward(self, x: Any, position: Any) -> Any:
        return self.function(self.rows, x, position)


def put(rows: Any, x: Any, position: Any) -> Any:
    return rows.index_copy_(1, position, x).mean(1)


def put_twice(rows: Any, x: Any, position: Any) -> Any:
    rows.index_copy_(1, position, x)
    return rows.index_add_(1, position, x).mean(1)


def put_and_read_the_old(rows: Any, x: Any, position: Any) -> Any:
    old = rows.sum(1)
    return rows.index_copy_(1, position, x).mean(1) - old


def permute(rows: Any, x: Any, position: Any) -> Any:
    """With as many positions as rows."""
    return rows.index_copy_(1, position, rows.clone())[:, 0] + x.sum()


def compiled(function: Any, folder: Path, count: int = 2) -> tuple[Any, Library]:
    example = (torch.zeros(3, count, 16), torch.zeros(count, dtype=torch.int64))
    made = TorchNetwork(torch.export.export(Rows(function), example), name="net")
    api.compile_untuned(api.plan(made), folder / "net.so")
    return made, Library.open(folder / "net.so")


def in_place(library: Library) -> int:
    """How many kernels change their data."""
    library.set_inputs(library.random_inputs(0))
    return sum(row.calls for row in library.profile(repeat=1) if row.name.endswith("_in_place"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "count"),
    [
        pytest.param(put, 1, id="once"),
        pytest.param(put_twice, 2, id="twice", marks=pytest.mark.slow),
        pytest.param(
            put_and_read_the_old, 0, id="not where the old is read", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.parametrize("rows", [2, pytest.param(480, marks=pytest.mark.slow)])
def test_they_equal_the_definition(function: Any, count: int, rows: int, tmp_path: Path):
    made, library = compiled(function, tmp_path, rows)
    assert in_place(library) == count
    inputs = library.random_inputs(1)
    inputs["position"] = np.random.default_rng(0).permutation(500)[:rows]
    for got, want in zip(library.run(inputs), made.reference(inputs), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.slow
def test_updates_that_are_the_old_state_are_read_before_it_changes(tmp_path: Path):
    made, library = compiled(permute, tmp_path, 500)
    assert in_place(library) == 0
    inputs = library.random_inputs(1)
    inputs["position"] = np.random.default_rng(0).permutation(500)
    for got, want in zip(library.run(inputs), made.reference(inputs), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-3)


@pytest.mark.slow
def test_the_new_state_is_where_the_old_was(tmp_path: Path):
    _, library = compiled(put, tmp_path)
    x, position = np.ones((3, 2, 16), "float32"), np.array([7, 400])
    library.step({"x": x, "position": position})
    (before,) = library.session._kept.values()  # type: ignore[attr-defined]
    library.step({"x": x, "position": position + 1})
    (after,) = library.session._kept.values()  # type: ignore[attr-defined]
    assert np.from_dlpack(after).ctypes.data == np.from_dlpack(before).ctypes.data
    assert set(np.flatnonzero(after.numpy()[0, :, 0])) == {7, 8, 400, 401}


class TwoBuffers(nn.Module):
    """Two buffers of which ``function`` returns the next values, and the output."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("a", torch.zeros(8, 4))
        self.register_buffer("b", torch.zeros(8, 4))

    def forward(self, x: Any, position: Any) -> Any:
        return self.function(self, x, position)


def snapshot(module: Any, x: Any, position: Any) -> Any:
    module.a.index_copy_(0, position, x)
    changed = module.a - module.b
    module.b.copy_(module.a.clone())
    return changed


def view_of_the_other(module: Any, x: Any, position: Any) -> Any:
    module.a.index_copy_(0, position, x)
    changed = module.a - module.b
    module.b.copy_(module.a.clone().reshape(4, 8).reshape(8, 4))
    return changed


def emptied(module: Any, x: Any, position: Any) -> Any:
    module.a.index_copy_(0, position, x)
    module.b.index_copy_(0, position, x)
    total = module.a + 2 * module.b
    module.a.zero_()
    module.b.zero_()
    return total


def swapped(module: Any, x: Any, position: Any) -> Any:
    module.a.index_copy_(0, position, x)
    old = module.a.clone()
    module.a.copy_(module.b)
    module.b.copy_(old)
    return module.a - 2 * module.b


def replaced_by_the_input(module: Any, x: Any, position: Any) -> Any:
    module.a.index_copy_(0, position, x)
    module.b.index_copy_(0, position, x[:, :1].expand(1, 4))
    total = module.a - module.b
    module.a.copy_(x.expand(8, 4).clone())
    return total


@pytest.mark.parametrize(
    "function",
    [
        snapshot,
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (view_of_the_other, emptied, swapped, replaced_by_the_input)
        ),
    ],
)
def test_state_that_shares_memory_after_a_step_is_not_changed_in_place(
    function: Any, tmp_path: Path
):
    example = (torch.ones(1, 4), torch.tensor([0]))
    module = TwoBuffers(function)
    made = TorchNetwork(torch.export.export(module, example), name="net")
    api.compile_untuned(api.plan(made), tmp_path / "net.so")
    library = Library.open(tmp_path / "net.so")
    for attempt in range(2):
        eager = TwoBuffers(function)
        for step in range(4):
            x, position = torch.full((1, 4), step + 1.0 + attempt), torch.tensor([step])
            with torch.no_grad():
                want = eager(x, position).numpy()
            (got,) = library.step({"x": x.numpy(), "position": position.numpy()})
            np.testing.assert_allclose(got, want, err_msg=f"step {step}")
        for name, value in library.get_state().items():
            np.testing.assert_allclose(value, eager.get_buffer(name).numpy())
        library.reset()
