"""Libraries of networks with state: what a run leaves is what the next begins with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmtune
from cli.commands import complaint
from cli.commands import tvmtune as run_tvmtune
from tvmtune import api
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library import metadata
from tvmtune.runtime.library import Library

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tvmtune.networks.torch.network import TorchNetwork  # noqa: E402


class Average(nn.Module):
    """The mean of all inputs so far, and how many there were."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((4,), start))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        self.total.add_(x)
        self.count.add_(1)
        return {"mean": self.total / self.count}


def compiled(module: nn.Module, path: Path) -> Path:
    made = TorchNetwork(torch.export.export(module, (torch.zeros(4),)), name="average")
    api.compile_untuned(api.plan(made), path)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(Average(), tmp_path_factory.mktemp("state") / "average.so")


def feed(value: float) -> dict[str, np.ndarray]:
    return {"x": np.full(4, value, "float32")}


def test_a_step_continues_from_the_last(path: Path):
    library = Library.open(path)
    assert [spec.name for spec in library.state] == ["total", "count"]
    assert [library.step(feed(value))[0][0] for value in (1, 2, 6)] == [1, 1.5, 3]
    assert library.get_state()["total"].tolist() == [9] * 4
    assert library.get_state()["count"] == 3


def test_a_run_neither_reads_nor_changes_the_steps_state(path: Path):
    library = Library.open(path)
    library.step(feed(1))
    for _ in range(2):
        mean, total, count = library.run(feed(5))
        assert (mean[0], total[0], count) == (5, 5, 1)
    given = {"total": np.full(4, 8, "float32"), "count": np.array(1)}
    assert library.run(feed(4) | given)[0][0] == 6
    assert library.step(feed(3))[0][0] == 2


def test_the_state_can_be_reset_and_moved_to_another_library(path: Path):
    first, second = Library.open(path), Library.open(path)
    first.step(feed(1))
    second.set_state(first.get_state())
    first.reset()
    assert first.step(feed(7))[0][0] == 7
    assert second.step(feed(5))[0][0] == 3


def test_what_does_not_fit_is_named(path: Path):
    library = Library.open(path)
    with pytest.raises(
        UsageError, match="has the unexpected total; the network takes x: 4 float32"
    ):
        library.step(feed(1) | {"total": np.zeros(4, "float32")})
    with pytest.raises(UsageError, match="the state lacks count; the network takes total"):
        library.set_state({"total": np.zeros(4, "float32")})


def test_steps_take_lists_and_are_not_repeated(path: Path):
    library = Library.open(path)
    library.set_state({"total": np.ones(4, "float32"), "count": 0})
    assert library.step({"x": np.zeros(4, "float32")})[0].tolist() == [1] * 4
    with pytest.raises(UsageError, match="call set_inputs first"):
        library.invoke()


def test_a_part_of_the_state_is_refused(path: Path):
    message = "has a part of the state, but lacks count: give all"
    with tvmtune.InferenceSession(path) as session, pytest.raises(UsageError, match=message):
        session.run(None, feed(1) | {"total": np.zeros(4, "float32")})


def test_a_session_keeps_the_state_and_shows_only_the_rest(path: Path):
    with tvmtune.InferenceSession(path) as session:
        assert [arg.name for arg in session.get_inputs()] == ["x"]
        assert [arg.name for arg in session.get_outputs()] == ["mean"]
        assert [session.run(None, feed(value))[0][0] for value in (2, 4)] == [2, 3]
        assert session.get_state()["count"] == 2
        session.reset()
        assert session.run(["mean"], feed(8))[0][0] == 8
        session.set_state({"total": np.full(4, 2, "float32"), "count": np.array(3)})
        assert session.run(None, feed(6))[0][0] == 2
    with pytest.raises(UsageError, match="is closed"):
        session.reset()


@pytest.mark.slow
def test_state_begins_with_the_values_of_the_file(tmp_path: Path):
    library = Library.open(compiled(Average(0.5), tmp_path / "average.so"))
    assert library.step(feed(1))[0].tolist() == [1.5] * 4
    library.reset()
    assert library.step(feed(2))[0].tolist() == [2.5] * 4


def test_much_state_that_is_not_zero_is_refused(tmp_path: Path):
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.ones(1 << 19))

        def forward(self, x: Any) -> Any:
            return self.total.add_(x.sum()).sum()

    with pytest.raises(
        TvmtuneError, match="'total', which the network changes, is 2.1 MB"
    ) as raised:
        compiled(Large(), tmp_path / "large.so")
    assert "make it an input and an output" in str(raised.value)
    assert not (tmp_path / "large.so").exists()


def test_the_command_line_shows_state_and_begins_with_it(path: Path, tmp_path: Path):
    def command(*words: object) -> Any:
        return run_tvmtune(*words, cwd=tmp_path)

    shown = command("inspect", path).stdout
    assert "inputs       x: 4 float32" in shown
    assert "state        total: 4 float32" in shown
    np.savez(tmp_path / "x.npz", **feed(3))
    done = command("run", path, "--input", "x.npz", "--output", "y.npz")
    assert "total: 4 float32: mean 3" in done.stdout
    after = dict(np.load(tmp_path / "y.npz"))
    del after["mean"]
    np.savez(tmp_path / "x.npz", **feed(5), **after)
    done = command("run", path, "--input", "x.npz", "--json")
    assert json.loads(done.stdout)["outputs"][0]["mean"] == 4
    np.savez(tmp_path / "x.npz", **after)
    refused = command("run", path, "--input", "x.npz")
    assert refused.returncode == 2
    assert "x.npz lacks x; the network takes x: 4 float32, total" in complaint(refused.stderr)


def test_metadata_with_state_that_is_no_output_are_damaged(path: Path, tmp_path: Path):
    copy = tmp_path / "copy.so"
    copy.write_bytes(path.read_bytes())
    stored = metadata.read(copy)
    stored["state"][0]["name"] = "other"
    metadata.append(copy, stored)
    with pytest.raises(TvmtuneError, match="damaged: 'state' has 'other'"):
        metadata.read(copy)
