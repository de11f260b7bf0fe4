"""Compare tvmtune's libraries with other runtimes, network by network, interleaved.

    python benchmarks/peers.py --out DIR [--networks NAME,...] [--files FILE ...] [--tune 10m]
    python benchmarks/peers.py --out DIR --report

Tunes and compiles each network once and keeps logs and libraries in DIR. Then measures a row for each
network and number of threads: all libraries and runtimes take turns in one process, on a machine that
others have left alone (``--wait``). A row has medians, errors at three magnitudes of the inputs, the
machine's measured roofline and each layer's time, and the load before, meanwhile and after. Rows are
appended to DIR/rows.jsonl. An interrupted or killed run continues where it was. Rows are measured again
if the machine, a version, tvmtune's sources or an option has changed; the report shows the newest
state only.

``--report`` prints the tables for benchmarks/cpu.md and measures nothing. Exits 1 if a network
failed or an output was wrong, after all others.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import command
from comparison import libraries, quiet, report, rows
from comparison.state import Case, row_key, state

from tvmtune import networks
from tvmtune.bench import peers
from tvmtune.cli.parsing import seconds_of
from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.machine import cpu_count
from tvmtune.types import digest

NETWORKS = (
    "resnet-18", "resnet-34", "resnet-50", "vgg-16", "inception_v3", "squeezenet_v1.1", "mobilenet",
    "mobilenet-v2", "mobilenet-v3-large", "efficientnet-b0", "densenet-121", "convnext-tiny",
    "bert-base", "gpt2", "vit-b-16",
)  # fmt: skip
PEERS = "onnxruntime,openvino,torch-max-autotune,ncnn"
ZOO = "zoo"
"""Means every network of the zoo."""


def main() -> int:
    options = _parse()
    try:
        if options.report:
            return _report(options)
        if options.out.exists() and not options.out.is_dir():
            raise UsageError(f"--out: {options.out} is not a directory")
        options.out.mkdir(parents=True, exist_ok=True)
        with (options.out / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another run writes to {options.out}: wait for it, or give another --out"
                ) from None
            return _measure(options)
    except (TvmtuneError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("interrupted: the same command continues", file=sys.stderr)
        return 130


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="logs, libraries and rows")
    add(
        "--networks",
        metavar="NAME,...",
        help=f"by default {', '.join(NETWORKS)}; or {ZOO}; '' none",
    )
    add("--files", "--onnx", nargs="+", default=[], metavar="FILE", help="ONNX, .pt2 or TFLite")
    add("--shape", action="append", default=[], metavar="NAME:1x3x224x224",
        help="for inputs of the files with dynamic dimensions")  # fmt: skip
    add("--layout", default="NHWC", metavar="NHWC|NCHW")
    add("--kinds", default="untuned,tuned", metavar="NAME,...", help=", ".join(libraries.KINDS))
    add("--peers", default=PEERS, metavar="NAME,...", help=f"by default {PEERS}")
    add("--tune", default="10m", metavar="TIME", help="tuning time per network (default: 10m)")
    add("--threads", metavar="N,...", help="by default one number: that of the cores")
    add("--repeat", type=int, default=50, metavar="N", help="turns (default: 50)")
    add("--seed", type=int, default=0, metavar="N", help="of the inputs")
    add("--wait", default="10m", metavar="TIME", help="at most, for a quiet machine (default: 10m)")
    add("--row-timeout", default="1h", metavar="TIME", help="for measuring a row (default: 1h)")
    add("--report", action="store_true", help="print the tables of the newest state and stop")
    add(
        "--top",
        type=int,
        default=5,
        metavar="N",
        help="layers per library in the report (default: 5)",
    )
    return parser.parse_args()


def _report(options: argparse.Namespace) -> int:
    found = rows.latest(rows.read(options.out / "rows.jsonl", _say))
    chosen, others = report.newest(found.values())
    if not chosen:
        raise TvmtuneError(f"there are no rows in {options.out / 'rows.jsonl'}")
    if others:
        _say(f"{others} rows of other states are left out")
    print(report.report(chosen, options.top), end="")
    return 0


def _measure(options: argparse.Namespace) -> int:
    cases = _cases(options)
    threads = _threads(options.threads)
    chosen = peers.parse(options.peers) if options.peers else []
    measuring = {
        "kinds": _kinds(options.kinds),
        "peers": [one.name for one in chosen],
        "tune": seconds_of("--tune", options.tune),
        "layout": options.layout,
        "repeat": _at_least_one("--repeat", options.repeat),
        "seed": options.seed,
        "tuned_threads": max(threads),
    }
    wait, limit = (
        seconds_of("--wait", options.wait),
        seconds_of("--row-timeout", options.row_timeout),
    )
    now = state(measuring)
    workshop = libraries.Workshop(options.out, max(threads), measuring["tune"])
    path = options.out / "rows.jsonl"
    done = rows.latest(rows.read(path, _say))
    bad = 0
    for case in cases:
        keys = {number: row_key(case, number, now) for number in threads}
        open_ = {n: k for n, k in keys.items() if "failure" in done.get(k, {"failure": ""})}
        if not open_:
            _say(f"{case.label}: measured already")
            bad += sum(_is_wrong(done[key]) for key in keys.values())
            continue
        common = {"network": case.label, "state": now, "state_key": digest(now)}
        try:
            made = {
                kind: libraries.make(kind, case, workshop, _compiling(now))
                for kind in measuring["kinds"]
            }
        except (command.Failed, TvmtuneError) as error:
            bad += 1
            _say(f"{case.label} failed: {error}")
            for number, key in open_.items():
                failure = {"failure": str(error), "threads": number, "key": key}
                rows.append(path, {**common, **failure, "measured": time.time()})
            continue
        for number, key in open_.items():
            row = {**common, "threads": number, "key": key}
            row |= _row(case, number, made, measuring, options.out, wait, limit)
            rows.append(path, row)
            bad += "failure" in row or _is_wrong(row)
    return 1 if bad else 0


def _row(
    case: Case,
    threads: int,
    made: dict[str, tuple[Path, dict[str, Any]]],
    measuring: dict[str, Any],
    out: Path,
    wait: float,
    limit: float,
) -> dict[str, Any]:
    """Measure in a process of its own, again without a peer that crashes it or hangs."""
    missing = {
        name: reason for name in measuring["peers"] if (reason := peers.peer(name).available())
    }
    messages = out / "txt" / f"{case.stem}-row.txt"
    messages.parent.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in (str(Path(__file__).parent), *sys.path) if p),
        "TORCHINDUCTOR_CACHE_DIR": str((out / "inductor").absolute()),
    }
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        job, stage = Path(name) / "job.json", Path(name) / "stage"
        while True:
            stage.write_text("")
            job.write_text(
                json.dumps(
                    {
                        "libraries": {k: str(p.absolute()) for k, (p, _) in made.items()},
                        "peers": [p for p in measuring["peers"] if p not in missing],
                        "threads": threads,
                        "repeat": measuring["repeat"],
                        "seed": measuring["seed"],
                        "stage": str(stage),
                    }
                )
            )
            before = quiet.wait(wait)
            _say(f"{case.label}: measuring with {threads} threads")
            try:
                output, seconds, _ = command.run(
                    [sys.executable, "-m", "comparison.row", str(job)],
                    stderr=messages,
                    limit=limit,
                    environment=environment,
                )
                break
            except command.Failed as error:
                guilty = stage.read_text()
                if not guilty:
                    _say(f"{case.label} failed: {error}")
                    return {"failure": str(error), "measured": time.time()}
                _say(f"{case.label}: without {guilty}: {error}")
                missing[guilty] = f"{guilty} is left out: {error}"
    row = json.loads(output.splitlines()[-1])
    for run in row["runs"]:
        if run["runtime"] in made and not run["check"]["passed"]:
            _say(f"{case.label}: the output of the library '{run['runtime']}' is wrong")
    measured = {run["runtime"] for run in row["runs"]}
    for name in measuring["peers"]:
        if name not in measured and name not in missing:
            missing[name] = next((n for n in row["notes"] if n.startswith(f"{name} ")), "skipped")
    return {
        **row,
        "missing": missing,
        "load": {"before": before, "after": quiet.load()},
        "libraries": {kind: notes for kind, (_, notes) in made.items()},
        "seconds": seconds,
        "measured": time.time(),
    }


def _is_wrong(row: dict[str, Any]) -> bool:
    return any(not run["check"]["passed"] for run in row["runs"] if "check" in run)


def _compiling(now: dict[str, Any]) -> dict[str, Any]:
    """The part of the state that libraries depend on."""
    return {name: now[name] for name in ("machine", "versions", "sources")}


def _cases(options: argparse.Namespace) -> list[Case]:
    if options.networks is None:
        chosen = [] if options.files else list(NETWORKS)
    else:
        chosen = [name.strip() for name in options.networks.split(",") if name.strip()]
    if ZOO in chosen:
        chosen = list(networks.names())
    for name in chosen:
        if name not in networks.names():
            raise UsageError(f"there is no network '{name}'.{nearest(name, networks.names())}")
    for name in options.files:
        if not Path(name).is_file():
            raise UsageError(f"--files: there is no file {name}")
    if not chosen and not options.files:
        raise UsageError("there is nothing to measure: name --networks or --files")
    if options.layout not in ("NHWC", "NCHW"):
        raise UsageError(f"--layout is NHWC or NCHW, not '{options.layout}'")
    cases = [Case(name, options.layout) for name in dict.fromkeys(chosen)]
    files = [
        Case(str(Path(f).absolute()), options.layout, tuple(options.shape)) for f in options.files
    ]
    for case in files:
        if not case.is_file:
            raise UsageError(f"--files: {case.network} is not a model file by its suffix")
    return [*cases, *files]


def _kinds(text: str) -> list[str]:
    kinds = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for kind in kinds:
        if kind not in libraries.KINDS:
            raise UsageError(f"--kinds: there is no '{kind}'. Known: {', '.join(libraries.KINDS)}")
    if not kinds:
        raise UsageError("--kinds names no library")
    return kinds


def _threads(text: str | None) -> list[int]:
    usable = cpu_count.count_cpus().allowed
    if text is None:
        return [cpu_count.usable_cpus()]
    try:
        numbers = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        raise UsageError(f"--threads takes numbers such as 1,2, not '{text}'") from None
    for number in numbers:
        if not 1 <= number <= usable:
            raise UsageError(f"--threads must be from 1 to {usable}, not {number}")
    return numbers


def _at_least_one(option: str, number: int) -> int:
    if number < 1:
        raise UsageError(f"{option} must be at least 1, not {number}")
    return number


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
