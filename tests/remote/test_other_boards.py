"""Commands and runs that meet another board under a key than before."""

from __future__ import annotations

import platform
from pathlib import Path

import onnx
import pytest

import models
from cli.commands import tvmtune
from remote import served
from tvmtune import Budget, api
from tvmtune.cli.resolve import lease_board
from tvmtune.errors import TvmtuneError
from tvmtune.machine import board_identity
from tvmtune.measure.board_pool import BoardPool, NoBoard
from tvmtune.records.log import read_log
from tvmtune.remote.client import boards
from tvmtune.remote.protocol import Address
from tvmtune.types import Timing

pytestmark = pytest.mark.slow

KEY = "x86"
OTHER = "Other CPU"
# Imported by a board's processes when they start: there is one kind of CPU here.
OTHER_CPU = f"""
from tvmtune.machine import describe
real = describe.describe
describe.describe = lambda: real() | {{"cpu": {OTHER!r}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(models.tiny_cnn(), tmp_path / "tiny.onnx")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sitecustomize.py").write_text(OTHER_CPU)
    return tmp_path


def other_board(farm: served.Farm, key: str, tracker: Address, folder: Path) -> served.Running:
    env = {"PYTHONPATH": str(folder / "other")}
    running = farm.start(farm.serving(key, tracker), env)
    running.expect("registered")
    return running


def test_a_library_runs_on_boards_like_those_it_was_tuned_for(
    farm: served.Farm, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``bench`` and ``run``, which lease boards by the same function."""
    _, tracker = farm.tracker()
    board, address = farm.board(KEY, tracker)
    library = folder / "lib.so"
    plan = api.plan(api.load(str(folder / "tiny.onnx")), "cpu", remote=f"{KEY}@{tracker}")
    api.compile(plan, library, check_seed=None)
    other = other_board(farm, KEY, tracker, folder)
    for _ in range(3):  # the tracker grants boards in turns
        with lease_board(library, KEY, str(tracker), served.LIMIT) as leased:
            assert leased is not None and leased.address == address
    board.end()
    capsys.readouterr()
    with (
        # It does not wait for another board: there is none.
        pytest.raises(TvmtuneError, match=f"the library was tuned for, it is {OTHER} instead of"),
        lease_board(library, KEY, str(tracker), 3600.0),
    ):
        pass
    told = capsys.readouterr().err
    assert told.startswith(f"the board '{KEY}' at ") and f"tvmtune serve --key {KEY}-2" in told
    other.end()
    other_board(farm, f"{KEY}-2", tracker, folder)
    done = tvmtune(
        *("bench", library, "--repeat", 2, "--remote", f"{KEY}-2", "--tracker", tracker),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert f"note: tuned on other boards than this one: it is {OTHER} instead of" in done.stderr


def test_a_run_measures_on_boards_like_its_first(farm: served.Farm, folder: Path) -> None:
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    other_board(farm, KEY, tracker, folder)
    lines: list[str] = []
    with BoardPool(KEY, tracker, report=lines.append) as pool:
        naps = [pool.submit("measure.board_calls:nap", (1.0,), served.LIMIT) for _ in range(6)]
        found = pool.collect(naps, deadline=served.LIMIT, stage="run")
    assert len({outcome.value for outcome in found}) == 1, "boards of both CPUs measured"
    (refused,) = [line for line in lines if line.startswith(f"the board '{KEY}' at")]
    assert "cannot be used" in refused and f"tvmtune serve --key {KEY}-2" in refused


GIVEN = {"mcpu": "x86-64-v3", "threads": 1}
"""With these nobody needs to ask the board, as with ``--target arm`` for boards known by name."""


def planned(folder: Path, tracker: Address, *, measured: bool) -> api.Plan:
    network = api.load(str(folder / "tiny.onnx"))
    where = f"{KEY}@{tracker}"
    return api.plan(network, "cpu", attrs=GIVEN, remote=where, measured=measured)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="an ARM board would do")
def test_a_board_of_another_architecture_is_refused_before_anything_is_compiled(
    farm: served.Farm, folder: Path
) -> None:
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    network = api.load(str(folder / "tiny.onnx"))
    attrs = {"mcpu": "cortex-a72"}
    with pytest.raises(TvmtuneError, match=f"the board '{KEY}' is {platform.machine()} .*choose"):
        api.plan(network, "arm", attrs=attrs, remote=f"{KEY}@{tracker}", measured=True)


def tune(plan: api.Plan, log: Path, trials: int) -> None:
    budget = Budget(trials=trials)
    api.tune(plan, log, budget=budget, timing=Timing(repeat=2), wait=5.0, shipped_records=False)


def test_a_log_is_not_continued_on_boards_of_another_cpu(farm: served.Farm, folder: Path) -> None:
    log = folder / "log.json"
    _, tracker = farm.tracker()
    board, _ = farm.board(KEY, tracker)
    tune(planned(folder, tracker, measured=True), log, 1)
    board.end()
    before = log.read_bytes()
    other_board(farm, KEY, tracker, folder)
    with pytest.raises(TvmtuneError, match=f"measured on other boards '{KEY}'.*it is {OTHER}"):
        tune(planned(folder, tracker, measured=True), log, 4)
    assert log.read_bytes() == before


def test_boards_that_could_not_be_asked_are_those_of_the_log(
    farm: served.Farm, folder: Path
) -> None:
    """They were busy while the run was planned."""
    log = folder / "log.json"
    _, tracker = farm.tracker()
    board, _ = farm.board(KEY, tracker)
    plan = planned(folder, tracker, measured=False)
    assert not plan.device.board
    identity = board_identity.of(boards.ask(f"{KEY}@{tracker}"))
    tune(plan, log, 1)
    assert [h["device"]["board"] for h in read_log(log).headers] == [identity]
    board.end()
    other_board(farm, KEY, tracker, folder)
    with pytest.raises(NoBoard, match=f"it is {OTHER} instead of"):
        tune(plan, log, 2)
    assert len(read_log(log).trials) == 1
    assert all(h["device"]["board"] == identity for h in read_log(log).headers)
