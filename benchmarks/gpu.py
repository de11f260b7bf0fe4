"""Compare whole networks with other runtimes on the same GPU, within a time budget.

    python benchmarks/gpu.py [--budget 8m] [--target cuda] [--target-attr KEY=VALUE] [--cuda-graphs]
        [--work DIR]

Tunes resnet-18 in float32, and in float16 and bfloat16 with tensor cores, and mobilenet in float32;
compiles each; and times its library in turns with PyTorch (channels last, cuDNN), torch.compile
(max-autotune) and ONNX Runtime, if they are installed with CUDA. Prints medians of wall-clock times
and, in parentheses, of the GPU's own times, at batch 1, as a Markdown table for benchmarks/README.md.
No runtime uses TF32 or CUDA graphs; with --cuda-graphs the libraries and PyTorch do, and ONNX Runtime
is omitted.

Logs in DIR are continued, so several short runs add up. A network for which a run has no time is left
to the next run; its row in the table is then from an earlier run. The distilled logs are
DIR/*.best.json: to start from them, copy them to an empty DIR under the names of the logs (*.json).
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

from command import Failed, tool

from tvmtune.cli.parsing import seconds_of
from tvmtune.records.log import read_log

PEERS = ("torch", "torch-compile", "onnxruntime")
CASES = {
    "resnet-18": ["--network", "resnet-18"],
    "resnet-18-float16": ["--network", "resnet-18", "--dtype", "float16"],
    "resnet-18-bfloat16": ["--network", "resnet-18", "--dtype", "bfloat16"],
    "mobilenet": ["--network", "mobilenet"],
}
FIRST = 60.0
"""Seconds that compiling and comparing are assumed to take before the first measurement."""
LEAST = 10.0
"""Seconds below which tuning is not worth starting."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="8m", help="e.g. 90s, 8m, 1h")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--target-attr", action="append", default=[])
    parser.add_argument("--cuda-graphs", action="store_true")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work/gpu"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds_of("--budget", options.budget)
    where = ["--target", options.target]
    where += [word for attr in options.target_attr for word in ("--target-attr", attr)]
    expected = FIRST
    # Networks that the last run had no time for come first.
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
        if options.target == "cuda" and "--dtype" in words:
            words.append("--tensor-cores")
        begun = time.monotonic()
        tuning = left / fitting - expected
        try:
            measure(options.work / f"{case}.json", words, tuning, graphs, reports[case])
        except Failed as error:
            failed.append(case)
            print(f"{case} failed: {error}", file=sys.stderr)
        else:
            expected = time.monotonic() - begun - tuning
    show(options.work, reports)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def measured_at(report: Path) -> float:
    """When a report was written, in seconds since the epoch; 0 for never."""
    return report.stat().st_mtime if report.exists() else 0.0


def measure(log: Path, words: list[str], tuning: float, graphs: list[str], report: Path) -> None:
    """Tune for ``tuning`` seconds, compile, compare with the other runtimes, and distill the log."""
    peers = [peer for peer in PEERS if not graphs or peer != "onnxruntime"]
    library = report.with_suffix(".so")
    # Kernels of a few microseconds differ only if their launches overlap.
    budget = ["--time-budget", f"{tuning:.0f}s", "--number", "20", "--repeat", "5"]
    for command in (
        ["tune", *words, "--log", str(log), *budget, "--no-compile"],
        ["compile", *words, *graphs, "--log", str(log), "-o", str(library)],
        ["bench", str(library), "--vs", ",".join(peers), "--check", "--repeat", "50",
         "--min-repeat-ms", "20", "--json", str(report)],
        ["distill", str(log)],
    ):  # fmt: skip
        print(tool(*command)[0], file=sys.stderr, end="")


def show(work: Path, reports: dict[str, Path]) -> None:
    """Print the table of everything measured in ``work``, now or earlier."""
    found = {case: json.loads(p.read_text()) for case, p in reports.items() if p.exists()}
    if not found:
        sys.exit("nothing was measured: give a larger --budget")
    one = next(iter(found.values()))
    versions = {r["runtime"]: r["version"] for each in found.values() for r in each["runs"]}
    print(f"{one['device']['model']}; {driver()}; {versions}\n")
    print(f"| network | trials | tvmtune ms | {' | '.join(f'{p} ms' for p in PEERS)} | "
          "fastest of these / tvmtune |")  # fmt: skip
    print("|---" * (len(PEERS) + 4) + "|")
    for case, each in found.items():
        device = each["runs"][0]["device"]
        # A peer that ran on the CPU says nothing about the GPU.
        on_gpu = {r["runtime"]: r for r in each["runs"] if r["device"] == device}
        times = {name: run["median_ms"] for name, run in on_gpu.items()}
        others = [times[p] for p in PEERS if p in times]
        cells = " | ".join(both(on_gpu[p]) if p in on_gpu else "-" for p in PEERS)
        ratio = f"{min(others) / times['tvmtune']:.2f}" if others else "-"
        trials = len(read_log(work / f"{case}.json").trials)
        print(f"| {case} | {trials} | {both(on_gpu['tvmtune'])} | {cells} | {ratio} |")
    for note in sorted({note for each in found.values() for note in each["notes"]}):
        print(f"\n- {note}")


def both(run: dict[str, Any]) -> str:
    """Wall-clock milliseconds, followed by the GPU's own if they were measured."""
    device_ms = run["device_ms"]
    return f"{run['median_ms']:.3f}" + ("" if device_ms is None else f" ({device_ms:.3f})")


def driver() -> str:
    """The driver's version, from nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi"
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(words, capture_output=True, text=True)
    return f"driver {done.stdout.strip()}"


if __name__ == "__main__":
    main()
