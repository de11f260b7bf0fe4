"""An emulated board of another architecture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.commands import tvmtune
from remote import emulated, served
from remote.test_server import RUN
from tvmtune.remote.protocol import DIED, Address

pytestmark = emulated.needed

ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
DOT = (
    'y[0:4] = T.Cast("float32x4", T.call_llvm_pure_intrin("int32x4", "llvm.aarch64.neon.sdot", '
    "T.broadcast(0, 4), T.broadcast(T.Cast('int8', x[i]), 16), "
    "T.broadcast(T.Cast('int8', x[i]), 16)))"
)
"""The int8 dot product, which not every 64-bit ARM CPU has."""


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("arm")
    bodies = {name: served.CANDIDATES[name] for name in ("sound", "abort", "sleep")}
    return served.build(folder, bodies, ARM) | served.build(
        folder, {"dot": DOT}, ARM | {"mcpu": "cortex-a76"}
    )


def run(board: Address, library: Path, options: str = "") -> str:
    return served.client(board, "rk3399", RUN.format(options=options), library).stdout


def doubles(board: Address, library: Path) -> bool:
    done = served.client(board, "rk3399", "doubles(connect(), sys.argv[1])", library)
    assert not done.returncode, done.stderr
    return done.stdout == "doubled\n"


@pytest.mark.slow
def test_a_board_serves_without_tvms_compiler(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, board = farm.emulated("rk3399")
    assert doubles(board, candidates["sound"])
    code = """
remote = connect()
x = tvm.runtime.tensor(np.zeros(8, "float32"), remote.cpu())
remote.get_function("tvm.contrib.random.random_fill_for_measure")(x)
assert len(set(x.numpy())) == 8
loaded = remote.get_function("tvmtune.board.describe")()
print(loaded)
"""
    described = json.loads(served.client(board, "rk3399", code).stdout)
    assert described["machine"] == "aarch64"
    assert described["versions"]["xgboost"] is None


@pytest.mark.slow
def test_probe_returns_architecture_and_features(farm: served.Farm, tmp_path: Path) -> None:
    _, tracker = farm.tracker()
    farm.emulated("rk3399", tracker)
    farm.emulated("pi5", tracker, cpu="cortex-a76")
    words = ("devices", "--probe", "--json", "--tracker", tracker)
    done = tvmtune(*words, cwd=tmp_path, timeout=served.LIMIT)
    described = {probe["key"]: probe["described"] for probe in json.loads(done.stdout)["probes"]}
    assert {each["machine"] for each in described.values()} == {"aarch64"}
    assert "asimd" in described["rk3399"]["features"]
    assert "asimddp" not in described["rk3399"]["features"]
    assert "asimddp" in described["pi5"]["features"]


@pytest.mark.slow
def test_an_unsupported_instruction_is_reported(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, board = farm.emulated("rk3399")
    output = run(board, candidates["dot"])
    assert DIED + "SIGILL (an instruction that its CPU does not have)" in output
    assert doubles(board, candidates["sound"])
    _, newer = farm.emulated("rk3399", cpu="cortex-a76")
    assert run(newer, candidates["dot"]) == "running\n"


@pytest.mark.slow
def test_the_server_survives_candidates_that_abort_or_hang(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, board = farm.emulated("rk3399")
    assert DIED + "SIGABRT" in run(board, candidates["abort"])
    assert "RPCSessionTimeoutError" in run(board, candidates["sleep"], "timeout=3")
    assert doubles(board, candidates["sound"])


@pytest.mark.soak  # it downloads the board's packages; in CI, workers build the board concurrently
def test_the_board_is_built_once_even_if_a_build_is_interrupted(tmp_path: Path) -> None:
    env = os.environ | {"TVMTUNE_TEST_CACHE": str(tmp_path)}
    words = [sys.executable, emulated.__file__]

    def make() -> subprocess.Popen[str]:
        return subprocess.Popen(
            words, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    with make() as interrupted:
        end = time.monotonic() + served.LIMIT
        while not list(tmp_path.glob("*.part-*/sysroot")):
            assert time.monotonic() < end
            time.sleep(0.1)
        os.killpg(interrupted.pid, signal.SIGKILL)
    both = [make(), make()]
    output = {process.communicate(timeout=4 * served.LIMIT)[0].strip() for process in both}
    assert not any(process.returncode for process in both)
    (python,) = output
    assert Path(python).is_relative_to(tmp_path) and Path(python).exists()
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
