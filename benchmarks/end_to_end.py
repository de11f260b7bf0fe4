"""Benchmark whole networks: untuned and tuned libraries, timed in turns with other runtimes.

    python benchmarks/end_to_end.py [--networks resnet-18,mobilenet] [--trials 1000] [--work DIR]

Prints a Markdown table for benchmarks/README.md. An existing log in DIR is resumed, so that an
interrupted run costs nothing. Figures measured on a busy machine are worthless: the script warns if the
load is high.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

PEERS = "onnxruntime,openvino"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="resnet-18,mobilenet")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: the load is {load:.2f} before the benchmark starts", file=sys.stderr)
    rows = []
    for network in options.networks.split(","):
        log = options.work / f"{network}.json"
        begun = time.monotonic()
        tool("tune", "--network", network, "--trials", str(options.trials), "--log", str(log),
             "--no-compile")  # fmt: skip
        minutes = (time.monotonic() - begun) / 60
        for kind in ("untuned", "tuned"):
            library = options.work / f"{network}-{kind}.so"
            records = ["--log", str(log)] if kind == "tuned" else []
            tool("compile", "--network", network, *records, "-o", str(library))
            rows.append((network, kind, minutes if records else 0.0, bench(library)))
    names = ["tvmtune", *PEERS.split(",")]
    print(f"| network | library | trials | minutes | {' | '.join(f'{n} ms' for n in names)} | "
          "tvmtune / onnxruntime |")  # fmt: skip
    print("|---" * (len(names) + 5) + "|")
    for network, kind, minutes, medians in rows:
        times = " | ".join(f"{medians[n]:.2f}" if n in medians else "-" for n in names)
        ratio = medians["tvmtune"] / medians["onnxruntime"]
        trials = options.trials if kind == "tuned" else 0
        print(f"| {network} | {kind} | {trials} | {minutes:.1f} | {times} | {ratio:.2f} |")


def bench(library: Path) -> dict[str, float]:
    """Median milliseconds by runtime, timed in turns in one run; the outputs are checked."""
    report = library.with_suffix(".bench.json")
    tool("bench", str(library), "--vs", PEERS, "--check", "--repeat", "50", "--json", str(report))
    runs = json.loads(report.read_text())["runs"]
    return {run["runtime"]: run["median_ms"] for run in runs}


def tool(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "tvmtune.cli", *words], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
