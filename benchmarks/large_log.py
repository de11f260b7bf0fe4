"""Makes a large log from a real one: the same tasks, designs and traces, with made-up times.

python benchmarks/large_log.py LOG OUTPUT [TRIALS]
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

from tvmtune.records import lines, schema

FAILURES = {
    "build": "the register allocator ran out of registers",
    "timeout": "killed after 10 s",
    "run": "invalid argument",
    "crash": "the worker was killed by signal 11",
}


def grow(source: Path, output: Path, trials: int, seed: int = 0) -> None:
    """Write a log of ``trials`` trials, whose latencies approach the best of each task in ``source``.

    About one in twenty fails; a reading of the baseline kernel follows every 100 trials.
    """
    draw = random.Random(seed)
    records = [lines.parse(line) for _, line in lines.read(source)]
    known = [r for r in records if r is not None]
    measured = [r for r in known if r["type"] == schema.TRIAL and r.get("seconds")]
    best: dict[str, float] = {}
    for record in measured:
        best[record["task"]] = min(best.get(record["task"], math.inf), min(record["seconds"]))
    header = next(r for r in known if r["type"] == schema.HEADER)
    clock = header.get("started") or 1.7e9
    with output.open("w", encoding="utf-8") as file:

        def write(record: dict[str, Any]) -> None:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")

        write(header)
        for record in known:
            if record["type"] in (schema.TASK, schema.DESIGN):
                write(record)
        for number in range(trials):
            # Each task has a trial before any has a second.
            model = measured[number] if number < len(measured) else draw.choice(measured)
            clock += draw.uniform(0.2, 1.2)
            slower = 1 + 4 * math.exp(-6 * number / trials) * draw.expovariate(1.0)
            middle = best[model["task"]] * slower
            trial = dict(model, candidate=f"0x{draw.getrandbits(64):016x}", time=clock)
            if number >= len(measured) and draw.random() < 0.05:
                stage = draw.choice(sorted(FAILURES))
                trial |= {"seconds": [], "error": {"stage": stage, "message": FAILURES[stage]}}
            else:
                trial["seconds"] = [middle * draw.uniform(0.99, 1.02) for _ in range(10)]
            write(trial)
            if number % 100 == 0:
                ratio = draw.gauss(1.02, 0.01) + (0.2 if draw.random() < 0.02 else 0.0)
                write({"type": schema.DRIFT, "ratio": ratio, "time": clock})


if __name__ == "__main__":
    grow(Path(sys.argv[1]), Path(sys.argv[2]), int((sys.argv[3:] or ["50000"])[0]))
