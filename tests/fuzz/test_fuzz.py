"""Files and messages that are damaged or made to do harm: one message, soon, and little memory.

Mutations of valid inputs (mutations.py) go to what reads them (kinds.py), in a process of their own
(runner.py). ``scripts/soak`` tries 10,000 of each kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fuzz.kinds import KINDS

SEED = int(os.environ.get("TVMTUNE_FUZZ_SEED", "7"))
QUICK, ALL = 100, 10_000


@pytest.mark.parametrize("count", [QUICK, pytest.param(ALL, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_mutated_input_is_read_or_refused(tmp_path, kind, count):
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.runner", kind, str(count), str(SEED), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=4 * 3600,
    )
    report = done.stdout[-2000:] + done.stderr[-8000:]
    assert done.returncode == 0, report
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["inputs"] >= count
    assert found["messages"] > 5
    assert found["megabytes"] < 1024
