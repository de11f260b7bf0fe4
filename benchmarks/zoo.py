"""Benchmark the zoo: compile, check and briefly tune each network, and time it beside ONNX Runtime.

    python benchmarks/zoo.py [--networks NAME,...] [--trials 64] [--layout NHWC] [--work DIR]

Prints a Markdown table for benchmarks/README.md: tasks, untuned and tuned milliseconds beside ONNX
Runtime's in turns, the error of the outputs, and what compile needed: seconds, and the peak of resident
memory of the process and its children. ``--trials 0`` only compiles and times. A network that fails
makes the script exit with 1, after the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tvmtune.networks import names

PEER = "onnxruntime"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(names()))
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--layout", default="NHWC")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: the load is {load:.2f} before the benchmark starts", file=sys.stderr)
    header = ("network", "tasks", "untuned ms", "tuned ms", f"{PEER} ms", "error", "compile s",
              "compile peak MB", "weights MB")  # fmt: skip
    print(f"| {' | '.join(header)} |\n{'|---' * len(header)}|", flush=True)
    failed = []
    for network in options.networks.split(","):
        try:
            print(f"| {' | '.join(row(network, options))} |", flush=True)
        except subprocess.CalledProcessError as error:
            failed.append(network)
            print(f"{network} failed: {error}", file=sys.stderr)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def row(network: str, options: argparse.Namespace) -> list[str]:
    common = ("--network", network, "--layout", options.layout)
    log = options.work / f"{network}-{options.layout}.json"
    library = options.work / f"{network}.so"
    listed = json.loads(tool("tasks", *common, "--json")[0])
    _, seconds, peak = tool("compile", *common, "-o", str(library))
    untuned = bench(library)
    tuned = None
    if options.trials:
        tool("tune", *common, "--trials", str(options.trials), "--log", str(log), "--no-compile")
        tool("compile", *common, "--log", str(log), "-o", str(library))
        tuned = bench(library)
    last = tuned or untuned
    return [
        network,
        str(len(listed["tasks"])),
        f"{untuned['tvmtune']['median_ms']:.2f}",
        f"{tuned['tvmtune']['median_ms']:.2f}" if tuned else "-",
        f"{last[PEER]['median_ms']:.2f}" if PEER in last else "-",
        f"{last['tvmtune']['check']['error']:.1e}",
        f"{seconds:.1f}",
        f"{peak / 1e6:.0f}",
        f"{library.stat().st_size / 1e6:.0f}",
    ]


def bench(library: Path) -> dict[str, dict]:
    """Runs by runtime; raises CalledProcessError if the outputs are wrong."""
    report = library.with_suffix(".bench.json")
    tool("bench", str(library), "--vs", PEER, "--check", "--json", str(report))
    return {run["runtime"]: run for run in json.loads(report.read_text())["runs"]}


def tool(*words: str) -> tuple[str, float, int]:
    """Run a command: standard output, seconds, and the process tree's peak of resident bytes."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "tvmtune.cli", *words], stdout=subprocess.PIPE, text=True
    )
    peak = 0
    output = ""
    while True:
        try:
            output, _ = process.communicate(timeout=0.05)
            break
        except subprocess.TimeoutExpired:
            peak = max(peak, resident(process.pid))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(words))
    return output, time.monotonic() - begun, peak


def resident(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        return sum(p.memory_info().rss for p in (root, *root.children(recursive=True)))
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
