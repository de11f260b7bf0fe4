"""Fuzzes one kind of input in a process of its own: ``python -m fuzz.runner KIND COUNT SEED FOLDER``.

Each input may take a gigabyte more than the process has, and one that takes too long ends it. Prints
a line of JSON: inputs, distinct messages, seconds of CPU time of the slowest input, and megabytes.
"""

from __future__ import annotations

import faulthandler
import json
import re
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.kinds import KINDS
from fuzz.mutations import Mutation, mutations

MEMORY = 1 << 30
"""Bytes that an input may take."""
CPU_SECONDS = 5.0
"""For one input."""
HANGS = 120
"""Seconds after which one that waits for something counts as hanging."""


def main(name: str, count: int, number: int, folder: Path) -> None:
    kind = KINDS[name]
    messages: dict[str, int] = {}
    slowest = 0.0
    total = 0

    def check(data: bytes) -> None:
        nonlocal slowest, total
        began = time.process_time()
        (folder / "input").write_bytes(data)  # for the case that it ends the process
        signal.alarm(HANGS)
        _limit(_address_space() + MEMORY)
        try:
            message = kind.read(data, folder)
        finally:
            signal.alarm(0)
            _limit(resource.RLIM_INFINITY)
        took = time.process_time() - began
        slowest = max(slowest, took)
        total += 1
        assert took < CPU_SECONDS, f"it took {took:.1f} s"
        form = re.sub(r"[0-9a-f]{16}|\d+|'[^']*'|\([^)]*\)", "#", message.replace(str(folder), ""))
        messages[form[:80]] = messages.get(form[:80], 0) + 1

    check(kind.make(0, [(0, 0, 0)]))  # imports
    before = _memory()

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # the changes are few enough to read, and shrinking takes minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 89), mutations)
    def explore(which: int, changes: list[Mutation]) -> None:
        check(kind.make(which, changes))

    explore()
    print(
        json.dumps(
            {
                "inputs": total,
                "messages": len(messages),
                "slowest_s": round(slowest, 3),
                "megabytes": (_memory() - before) >> 20,
                "forms": sorted(messages.items(), key=lambda item: -item[1]),
            }
        )
    )


def _limit(size: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size, most))


def _memory() -> int:
    """The largest resident size so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    faulthandler.enable()
    warnings.simplefilter("ignore")
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
