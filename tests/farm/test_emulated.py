"""A board of another architecture: what it needs, what it tells, what it survives."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.commands import tvmtune
from farm import emulated, served
from farm.test_server import RUN
from tvmtune.farm.nursery import DIED
from tvmtune.farm.protocol import Address

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("apt-get") and shutil.which("dpkg-deb")),
        reason="the emulated board is made of Debian's packages",
    ),
]

ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
DOT = (
    'y[0:4] = T.Cast("float32x4", T.call_llvm_pure_intrin("int32x4", "llvm.aarch64.neon.sdot", '
    "T.broadcast(0, 4), T.broadcast(T.Cast('int8', x[i]), 16), "
    "T.broadcast(T.Cast('int8', x[i]), 16)))"
)
"""The dot product of eight bits, which not every 64-bit ARM CPU has."""


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


def test_a_board_serves_with_the_light_parts_alone(
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
    told = json.loads(served.client(board, "rk3399", code).stdout)
    assert told["machine"] == "aarch64"
    assert told["versions"]["xgboost"] is None


def test_a_probe_tells_its_architecture_and_features(farm: served.Farm, tmp_path: Path) -> None:
    _, tracker = farm.tracker()
    farm.emulated("rk3399", tracker)
    farm.emulated("pi5", tracker, cpu="cortex-a76")
    words = ("devices", "--probe", "--json", "--tracker", tracker)
    done = tvmtune(*words, cwd=tmp_path, timeout=served.LIMIT)
    told = {probe["key"]: probe["described"] for probe in json.loads(done.stdout)["probes"]}
    assert {each["machine"] for each in told.values()} == {"aarch64"}
    assert "asimd" in told["rk3399"]["features"]
    assert "asimddp" not in told["rk3399"]["features"]
    assert "asimddp" in told["pi5"]["features"]


def test_an_instruction_that_the_board_lacks_is_told_as_such(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, board = farm.emulated("rk3399")
    said = run(board, candidates["dot"])
    assert DIED + "SIGILL (an instruction that its CPU does not have)" in said
    assert doubles(board, candidates["sound"])
    _, newer = farm.emulated("rk3399", cpu="cortex-a76")
    assert run(newer, candidates["dot"]) == "running\n"


def test_it_outlives_candidates_that_abort_and_hang(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, board = farm.emulated("rk3399")
    assert DIED + "SIGABRT" in run(board, candidates["abort"])
    assert "RPCSessionTimeoutError" in run(board, candidates["sleep"], "timeout=3")
    assert doubles(board, candidates["sound"])


def test_it_is_made_once_whoever_is_interrupted(tmp_path: Path) -> None:
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
    said = {process.communicate(timeout=4 * served.LIMIT)[0].strip() for process in both}
    assert not any(process.returncode for process in both)
    (python,) = said
    assert Path(python).is_relative_to(tmp_path) and Path(python).exists()
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
