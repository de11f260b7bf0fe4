"""Makes the records that come with tvmtune for processors like this machine's.

    python scripts/ship_records.py --work DIR [--tune 10m] [--threads 1,2] [--mcpu NAME] [NETWORK ...]
    python scripts/ship_records.py --logs LOG ...

The first form tunes each network and keeps the logs in DIR; an interrupted run continues there. Leave
the machine alone meanwhile. Then, and in the second form for existing logs, it packs the best records
of each device into a file in src/tvmtune/records/shipped, or in --output.

A record is kept if its output was verified, it is at least 3% faster than the schedule that compile
takes without a record, which the log must have measured, and its trace still gives the program that
was measured. Where the fastest algorithm rounds more than the direct one, the best exact record is
kept, too.
"""

from __future__ import annotations

import argparse
import lzma
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import tvm

from tvmtune import api, networks
from tvmtune.atomic_write import replacing
from tvmtune.errors import TvmtuneError
from tvmtune.passes.workload_keys import structure
from tvmtune.records import schema, shipped
from tvmtune.records.best import ranked
from tvmtune.records.log import Log, LogWriter, read_log
from tvmtune.spaces import traces
from tvmtune.types import JSON, Device, Implementation, Task, Trial

NETWORKS = (
    "resnet-18", "resnet-50", "vgg-16", "inception_v3", "squeezenet_v1.1", "mobilenet",
    "mobilenet-v2", "mobilenet-v3-large", "mobilenet-v3-small", "efficientnet-b0", "densenet-121",
    "convnext-tiny", "bert-base", "gpt2", "vit-b-16",
)  # fmt: skip
GAIN = 0.03
"""Part of the default schedule's time that a record must save."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("networks", nargs="*", metavar="NETWORK", help=f"by default {', '.join(NETWORKS)}")
    add("--work", type=Path, metavar="DIR", help="where logs are kept")
    add(
        "--tune",
        default="10m",
        metavar="TIME",
        help="tuning time per network and number of threads",
    )
    add("--threads", default="", metavar="N,...", help="by default this machine's")
    add("--mcpu", metavar="NAME", help="another processor that this one can stand for")
    add("--logs", nargs="+", type=Path, default=[], metavar="LOG", help="pack these; tune nothing")
    add("--output", type=Path, default=shipped.FOLDER, metavar="FOLDER", help="for the files")
    options = parser.parse_args()
    if bool(options.work) == bool(options.logs):
        parser.error("give either --work or --logs")
    try:
        logs = options.logs or list(_tune(options))
        pack([read_log(path) for path in logs], options.output)
    except (TvmtuneError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _tune(options: argparse.Namespace) -> Iterator[Path]:
    """Tune every network for every number of threads; yields the logs."""
    for threads in options.threads.split(","):
        attrs = [f"threads={threads}"] * bool(threads) + [f"mcpu={options.mcpu}"] * bool(
            options.mcpu
        )
        folder = options.work / "-".join(["log", *attrs]).replace("=", "")
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.networks or NETWORKS:
            log, done = folder / f"{name}.json", folder / f"{name}.done"
            if not done.exists():
                others = [path for path in sorted(folder.glob("*.json")) if path != log]
                subprocess.run(
                    [
                        *(sys.executable, "-m", "tvmtune.cli", "tune", name, "--no-compile"),
                        *(word for attr in attrs for word in ("--target-attr", attr)),
                        *("--time-budget", options.tune, "--log", str(log)),
                        *(word for other in others for word in ("--transfer-from", str(other))),
                    ],
                    check=True,
                )
                done.touch()
            yield log


def pack(logs: Sequence[Log], folder: Path) -> None:
    """Write a file to ``folder`` for each device that the logs were measured on.

    Raises :class:`TvmtuneError` for a log of something else than a network of the zoo on a CPU of a
    known class or a GPU, and if two devices would share a file.
    """
    groups: dict[str, list[Log]] = {}
    names: dict[str, str] = {}
    for log in logs:
        for identity, described in log.devices().items():
            device = Device.from_json(described)
            known = shipped.family(device) is not None
            if device.backend not in ("cpu", "cuda") or device.remote is not None or not known:
                raise TvmtuneError(f"{log.path} was measured on {device.model}, not on a known CPU")
            name = shipped.file_name(device)
            if names.setdefault(name, identity) != identity:
                raise TvmtuneError(f"{log.path} and others for {name} are of different devices")
            if log not in groups.setdefault(name, []):
                groups[name].append(log)
    for name, group in groups.items():
        with tempfile.TemporaryDirectory(prefix="tvmtune-ship-") as scratch:
            plain = Path(scratch) / "log.json"
            tasks, kept = _write(group, names[name], plain)
            with replacing(folder / name) as fresh:
                fresh.write_bytes(lzma.compress(plain.read_bytes(), preset=9))
        size = (folder / name).stat().st_size
        print(f"{name}: {kept} of {tasks} tasks have a record, {size / 1e3:.0f} kB")


def _write(logs: Sequence[Log], identity: str, path: Path) -> tuple[int, int]:
    """Write a distilled log; returns the numbers of tasks and of those with a record."""
    trials = ranked(t for log in logs for t in log.trials if t.device == identity)
    seen: set[str] = set()
    with_record = 0
    with LogWriter(path) as writer:
        for log in logs:
            header = next(h for h in log.headers if h["device"]["identity"] == identity)
            fields = {k: v for k, v in header.items() if k != "host"}
            writer.write(schema.copied(fields, format=schema.FORMAT, distilled=True))
            target = tvm.target.Target(header["device"]["target"])
            for task in _tasks(header):
                if task.key in seen:
                    continue
                seen.add(task.key)
                best = _best(task, trials.get(task.key, ()), target)
                with_record += bool(best)
                writer.write(_task_line(task, best))
                for trial in best:
                    writer.trial(trial.evolve(extra={}))
    return len(seen), with_record


def _tasks(header: JSON) -> list[Task]:
    """The tasks of a log's network, as this version of tvmtune extracts them."""
    device, network = Device.from_json(header["device"]), header["network"]
    attrs = {"threads": device.threads, "mcpu": device.target.get("mcpu")}
    if device.backend == "cuda":
        attrs = {**device.attrs, "arch": device.target["arch"]}
    loaded = networks.reload(network["source"])
    return api.plan(loaded, device.backend, attrs=attrs, layout=network["layout"]).tasks


def _best(task: Task, order: Sequence[Trial], target: tvm.target.Target) -> list[Trial]:
    """The records to keep for a task, out of its trials from the fastest to the slowest."""
    implementations = {i.name: i for i in task.implementations}
    usable = [
        t
        for t in order
        if t.verified and t.implementation in implementations and "drift" not in t.extra
    ]
    chosen = []
    for default, exact in ((task.untuned, False), (task.untuned_exact, True)):
        limit = _default_latency(default, order, target)
        if limit is None:
            print(f"{task.name}: the log has no time of today's default schedule: tune again")
            continue
        for trial in usable:
            implementation = implementations[trial.implementation]
            if exact and not implementation.exact:
                continue
            if trial.latency > (1 - GAIN) * limit:
                break
            if trial in chosen:
                break
            if _applies(trial, implementation):
                chosen.append(trial)
                break
            print(f"{task.name}: a record of {trial.implementation} does not apply any more")
    return chosen


def _default_latency(
    implementation: Implementation, order: Sequence[Trial], target: tvm.target.Target
) -> float | None:
    """What the implementation's default schedule took; None if it was not measured."""
    candidate = structure(implementation.space.default(implementation.mod, target).mod)
    times = (
        t.latency
        for t in order
        if t.candidate == candidate and t.implementation == implementation.name
    )
    return min(times, default=None)


def _applies(trial: Trial, implementation: Implementation) -> bool:
    """Whether the trace gives the program that was measured."""
    try:
        made = traces.apply(implementation.mod, trial.trace).mod
    except Exception:  # whatever TVM raises
        return False
    return trial.workload == implementation.workload_key and trial.candidate == structure(made)


def _task_line(task: Task, records: Sequence[Trial]) -> schema.Line:
    """The task with the workloads of its records, which xz compresses better than zlib."""
    used = {trial.implementation for trial in records}
    line = schema.task(task)
    modules = {i.name: i.mod for i in task.implementations}
    kept = [
        {**i, "module": traces.store_module(modules[i["name"]], level=0)}
        for i in line.fields["implementations"]
        if i["name"] in used
    ]
    return schema.Line(line.kind, line.fields | {"implementations": kept})


if __name__ == "__main__":
    sys.exit(main())
