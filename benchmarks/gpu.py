"""Whole networks on a GPU against other runtimes on the same GPU, within a budget of time.

    python benchmarks/gpu.py [--budget 8m] [--target cuda] [--target-attr KEY=VALUE] [--cuda-graphs]
        [--work DIR]

Tunes resnet-18 in float32, again in float16 with tensor cores, and mobilenet in float32; compiles
each; and has the library take turns with PyTorch (channels last, cuDNN), torch.compile (max-autotune)
and ONNX Runtime, where they are installed with CUDA. Medians by the wall clock and, in brackets, by
the GPU's own; batch 1. Nobody uses TF32, and nobody CUDA graphs: with --cuda-graphs the libraries do
and PyTorch does, and ONNX Runtime is left out. Prints a Markdown table for benchmarks/README.md.

Logs in DIR are continued, so that several short runs add up; what a run has no time for stays for the
next, and its row in the table is that of the last run that had. The distilled logs are DIR/*.best.json:
put them into an empty DIR under the names of the logs (*.json) to start from there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from end_to_end import tool

from tvmtune.cli.options import seconds_of
from tvmtune.records.log import read_log

PEERS = ("torch", "torch-compile", "onnxruntime")
CASES = {
    "resnet-18": ["--network", "resnet-18"],
    "resnet-18-float16": ["--network", "resnet-18", "--dtype", "float16"],
    "mobilenet": ["--network", "mobilenet"],
}
FIRST = 60.0
"""Seconds that compiling and comparing are expected to take where nothing is known."""
LEAST = 10.0
"""Seconds below which tuning is not worth its beginning."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=seconds_of, default="8m", help="e.g. 90s, 8m, 1h")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--target-attr", action="append", default=[])
    parser.add_argument("--cuda-graphs", action="store_true")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work/gpu"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.budget
    where = ["--target", options.target]
    where += [word for attr in options.target_attr for word in ("--target-attr", attr)]
    expected = FIRST
    # Those that had no time the last time come first now.
    graphs = ["--target-attr", "cuda-graphs=1"] if options.cuda_graphs else []
    suffix = ".graphs.bench" if graphs else ".bench"
    reports = {case: options.work / f"{case}{suffix}" for case in CASES}
    waiting = sorted(CASES, key=lambda case: measured_at(reports[case]))
    failed = []
    while waiting:
        left = end - time.monotonic()
        fitting = min(len(waiting), int(left / (expected + LEAST)))
        if fitting < 1:
            print(f"no time left for {', '.join(waiting)}: run this again", file=sys.stderr)
            break
        case = waiting.pop(0)
        words = [*CASES[case], *where]
        if options.target == "cuda" and "float16" in words:
            words.append("--tensor-cores")
        begun = time.monotonic()
        tuning = left / fitting - expected
        try:
            measure(options.work / f"{case}.json", words, tuning, graphs, reports[case])
        except subprocess.CalledProcessError as error:
            failed.append(case)
            print(f"{case} failed: {error}", file=sys.stderr)
        else:
            expected = time.monotonic() - begun - tuning
    show(options.work, reports)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def measured_at(report: Path) -> float:
    """Seconds since the epoch; 0 for never."""
    return report.stat().st_mtime if report.exists() else 0.0


def measure(log: Path, words: list[str], tuning: float, graphs: list[str], report: Path) -> None:
    """Tune for so many seconds, compile, compare with the others, and distill the log."""
    peers = [peer for peer in PEERS if not graphs or peer != "onnxruntime"]
    library = report.with_suffix(".so")
    budget = ["--time-budget", f"{tuning:.0f}s"]
    tool("tune", *words, "--log", str(log), *budget, "--no-compile")
    tool("compile", *words, *graphs, "--log", str(log), "-o", str(library))
    tool("bench", str(library), "--vs", ",".join(peers), "--check", "--repeat", "50",
         "--min-repeat-ms", "20", "--json", str(report))  # fmt: skip
    tool("distill", str(log))


def show(work: Path, reports: dict[str, Path]) -> None:
    """The table of all that has been measured in ``work``, now or before."""
    found = {case: json.loads(p.read_text()) for case, p in reports.items() if p.exists()}
    if not found:
        sys.exit("nothing was measured: give a larger --budget")
    one = next(iter(found.values()))
    versions = {r["runtime"]: r["version"] for each in found.values() for r in each["runs"]}
    print(f"{one['device']['model']}; {driver()}; {versions}\n")
    print(f"| network | trials | tvmtune ms | {' | '.join(f'{p} ms' for p in PEERS)} | "
          "best of these / tvmtune |")  # fmt: skip
    print("|---" * (len(PEERS) + 4) + "|")
    for case, each in found.items():
        device = each["runs"][0]["device"]
        # A peer that stayed on the CPU says nothing of the GPU.
        there = {r["runtime"]: r for r in each["runs"] if r["device"] == device}
        times = {name: run["median_ms"] for name, run in there.items()}
        others = [times[p] for p in PEERS if p in times]
        cells = " | ".join(both(there[p]) if p in there else "-" for p in PEERS)
        ratio = f"{min(others) / times['tvmtune']:.2f}" if others else "-"
        trials = len(read_log(work / f"{case}.json").trials)
        print(f"| {case} | {trials} | {both(there['tvmtune'])} | {cells} | {ratio} |")
    for note in sorted({note for each in found.values() for note in each["notes"]}):
        print(f"\n- {note}")


def both(run: dict[str, Any]) -> str:
    """Milliseconds by the wall clock, and by the GPU's where that is told."""
    told = run["device_ms"]
    return f"{run['median_ms']:.3f}" + ("" if told is None else f" ({told:.3f})")


def driver() -> str:
    """The driver's version, as NVIDIA's tool tells it."""
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi"
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(words, capture_output=True, text=True)
    return f"driver {done.stdout.strip()}"


if __name__ == "__main__":
    main()
