"""A board whose time of day is set while it measures."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from remote import served
from tvmtune.measure.board_pool import BoardPool
from tvmtune.types import TensorSpec, Timing

STEPPED_CLOCK = Path(__file__).parents[2] / "benchmarks" / "stepped_clock.c"
HOUR = "\\\\020\\\\016\\\\000\\\\000\\\\000\\\\000\\\\000\\\\000"
"""3600 as a 64-bit integer, for ``printf`` in C in TVMScript."""
# TVM's timer calls the kernel once before it begins.
STEPS = (
    "mkdir {folder}/warm 2>/dev/null || {{ mkdir {folder}/timed 2>/dev/null && "
    "printf '{hour}' | dd of={folder}/clock conv=notrunc 2>/dev/null; }}"
)
ARGUMENTS = (TensorSpec("x", (8,), "float32"), TensorSpec("y", (8,), "float32"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: apt-get install gcc")
def test_a_candidates_times_contain_no_step_of_the_boards_clock(
    farm: served.Farm, tmp_path: Path
) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(bytes(8))
    library = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, STEPPED_CLOCK], check=True)
    env = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(clock)}
    steps = STEPS.format(folder=tmp_path, hour=HOUR)
    body = f'if i == 0:\n                T.evaluate(T.call_extern("int32", "system", "{steps}"))'
    (candidate,) = served.build(tmp_path, {"steps": body}).values()

    _, tracker = farm.tracker()
    board = farm.start(farm.serving("b", tracker), env)
    board.expect("registered")
    with BoardPool("b", tracker, report=print) as pool:
        call = (str(candidate), ARGUMENTS, Timing(number=1, repeat=2, min_repeat_ms=0), {})
        number = pool.submit("tvmtune.measure.remote_runner:run", call, served.LIMIT)
        (outcome,) = pool.collect([number], deadline=served.LIMIT, stage="run")
    assert outcome.ok, outcome
    assert clock.read_bytes() == (3600).to_bytes(8, "little"), "the clock was never set"
    assert 0 < min(outcome.value) <= max(outcome.value) < served.LIMIT
