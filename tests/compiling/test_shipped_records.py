"""Records that come with tvmtune: compile and tune start from them, on equal and similar CPUs."""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from models import tiny_cnn
from tvmtune import api, networks
from tvmtune.cli import main
from tvmtune.errors import TvmtuneError
from tvmtune.machine import cpu_features
from tvmtune.passes.workload_keys import structure
from tvmtune.records import shipped
from tvmtune.records.log import read_log
from tvmtune.spaces import traces
from tvmtune.tuning.budget import Budget
from tvmtune.tuning.observer import Observer
from tvmtune.types import Device, Timing

SCRIPT = Path(__file__).parents[2] / "scripts" / "ship_records.py"
FILES = sorted(shipped.FOLDER.glob("*.xz"))
PATIENT = Timing(repeat=3, build_timeout=120.0, run_timeout=60.0)


def plan_of(folder: Path, **options) -> api.Plan:
    path = folder / "network.onnx"
    onnx.save(tiny_cnn(), path)
    return api.plan(api.load(str(path)), **options)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    plan = plan_of(tmp_path_factory.mktemp("network"))
    if cpu_features.cpu_class(plan.device.target) is None:
        pytest.skip("there are no shipped records for this CPU's class")
    return plan


@pytest.fixture(scope="module")
def log(plan, tmp_path_factory):
    """A log that claims that the last candidate of each task is the fastest, the others equal."""
    path = tmp_path_factory.mktemp("log") / "log.json"
    trials = 2 * sum(len(task.implementations) for task in plan.tasks) + 8
    api.tune(
        plan, path, budget=Budget(trials=trials), timing=PATIENT, tuner="random",
        scheduler="round-robin", shipped_records=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line for line in lines if line["type"] != "remeasure"]
    last = {}
    for line in lines:
        if line["type"] == "trial" and line["seconds"]:
            line["seconds"] = [1e-3]  # or chance would decide between a task's default schedules
            if line["tuner"] != "default":
                last[line["task"]] = line
    for line in last.values():
        line |= {"seconds": [1e-9], "verified": True}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def packed(log, tmp_path_factory):
    """Shipped records that were made from the log."""
    folder = tmp_path_factory.mktemp("packed")
    command = [sys.executable, str(SCRIPT), "--logs", str(log), "--output", str(folder)]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def folder(packed, tmp_path, monkeypatch):
    """A copy of the shipped records, in place of the package's."""
    folder = shutil.copytree(packed, tmp_path / "shipped")
    monkeypatch.setattr(shipped, "FOLDER", folder)
    return folder


def kinds(compiled):
    return [row["record"] for row in compiled.metadata["tasks"]["list"]]


@pytest.mark.slow
def test_compile_takes_shipped_records_without_a_log(plan, log, folder, tmp_path):
    (file,) = folder.iterdir()
    assert file.name == shipped.file_name(plan.device)
    expected = {t.task for t in read_log(log).trials if t.latency == 1e-9}
    assert {t.task for t in read_log(file).trials} == expected
    compiled = api.compile(plan, tmp_path / "lib.so")
    assert compiled.counts["shipped"] == len(expected) > 0
    rows = compiled.metadata["tasks"]["list"]
    assert all(row["latency"] is None for row in rows), "it was measured on another machine"
    assert compiled.metadata["estimate_ms"] is None
    without = api.compile(plan, tmp_path / "without.so", shipped_records=False)
    assert set(kinds(without)) == {"default"}


@pytest.mark.slow
def test_the_command_says_how_many_records_are_shipped_and_can_leave_them_out(
    plan, folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    network = plan.network.source["file"]
    records = len({t.task for t in read_log(next(folder.iterdir())).trials})

    def printed(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["compile", network, "-o", "lib.so", *words])
        assert ended.value.code == 0
        return capsys.readouterr().out

    total = len(plan.tasks)
    assert f"{records} with a shipped record, {total - records} with the default" in printed()
    assert "shipped" not in printed("--no-shipped-records")


@pytest.mark.slow
def test_records_of_a_log_come_before_shipped_ones(plan, log, folder, tmp_path):
    own = tmp_path / "own.json"
    first = plan.tasks[0].key
    lines = log.read_text().splitlines()
    own.write_text(
        "".join(
            f"{line}\n"
            for line in lines
            if json.loads(line).get("task", first) == first or json.loads(line)["type"] != "trial"
        )
    )
    compiled = api.compile(plan, tmp_path / "lib.so", [own])
    assert kinds(compiled)[0] == "exact"
    assert compiled.counts["exact"] == 1
    assert compiled.counts["shipped"] > 0


@pytest.mark.slow
def test_shipped_records_are_for_as_many_threads(plan, folder, tmp_path):
    if plan.device.threads == 1:
        pytest.skip("this machine has one CPU")
    fewer = plan_of(tmp_path, attrs={"threads": 1})
    compiled = api.compile(fewer, tmp_path / "lib.so")
    assert set(kinds(compiled)) == {"default"}
    found = shipped.for_tuning(fewer.device)
    assert found is not None, "tuning measures them"


@pytest.mark.slow
def test_compile_takes_no_records_of_another_processor_but_tuning_does(plan, folder):
    (file,) = folder.iterdir()
    cpu, _, threads = file.name.split("_")
    file.rename(folder / f"{cpu}_another-processor_{threads}")
    assert shipped.for_compiling(plan.device) is None
    assert shipped.for_tuning(plan.device) is not None


@pytest.mark.slow
def test_inexact_shipped_records_are_not_used_where_the_output_is_not_checked(plan, folder):
    (file,) = folder.iterdir()
    inexact = {
        (task.key, implementation.name)
        for task in plan.tasks
        for implementation in task.implementations
        if not implementation.exact
    }
    every = shipped.for_compiling(plan.device)
    exact = shipped.for_compiling(plan.device, exact_only=True)
    assert every is not None
    assert exact is not None
    assert [t for t in every.trials if (t.task, t.implementation) not in inexact] == exact.trials
    assert exact.tasks == every.tasks == read_log(file).tasks


class Notes(Observer):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def noted(self, message: str) -> None:
        self.messages.append(message)


@pytest.mark.slow
def test_tuning_measures_shipped_records_after_the_defaults_and_once(plan, folder, tmp_path):
    path, notes = tmp_path / "log.json", Notes()
    records = read_log(next(folder.iterdir())).trials
    defaults = sum(len(task.implementations) for task in plan.tasks)
    trials = defaults + len(records)
    api.tune(plan, path, budget=Budget(trials=trials), timing=PATIENT, observer=notes)
    tuners = [trial.tuner for trial in read_log(path).trials]
    assert tuners[:defaults] == ["default"] * defaults
    assert "shipped" in tuners[defaults:]
    measured = {t.candidate for t in read_log(path).trials}
    assert {t.candidate for t in records} <= measured
    assert f"{len({t.task for t in records})} of {len(plan.tasks)} tasks have a shipped record" in (
        " ".join(notes.messages)
    )
    api.tune(plan, path, budget=Budget(trials=trials + 2), timing=PATIENT)
    again = [trial.tuner for trial in read_log(path).trials[trials:]]
    assert "shipped" not in again


@pytest.mark.slow
def test_a_damaged_file_is_reported_by_name(plan, tmp_path, monkeypatch):
    path = tmp_path / shipped.file_name(plan.device)
    path.write_bytes(b"no records")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    with pytest.raises(TvmtuneError, match=f"{path.name} is truncated, damaged"):
        api.compile(plan, tmp_path / "lib.so")
    assert not (tmp_path / "lib.so").exists()
    api.compile(plan, tmp_path / "lib.so", shipped_records=False)


@pytest.mark.slow
def test_only_logs_of_known_cpus_are_packed(tmp_path):
    made = Device("cpu", {"kind": "llvm", "mcpu": "nehalem"}, 2, model="old CPU")
    header = {"format": 2, "network": {"name": "net"}, "device": made.to_json()}
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"type": "header", **header}) + "\n")
    command = [sys.executable, str(SCRIPT), "--logs", str(path), "--output", str(tmp_path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 1
    assert "was measured on old CPU, not on a known CPU" in result.stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_the_records_of_the_package_were_verified_and_name_their_machine(file):
    log = read_log(file)
    assert log.trials
    assert all(trial.verified and trial.ok for trial in log.trials)
    for header in log.headers:
        assert header["distilled"]
        assert "host" not in header
        assert file.name == shipped.file_name(Device.from_json(header["device"]))


@pytest.mark.parametrize("host", [1, 64])
def test_records_of_a_gpu_serve_its_model_on_any_host_and_tuning_on_its_architecture(host):
    (file,) = (path for path in FILES if path.name.startswith("cuda-sm90_"))
    header = read_log(file).headers[0]
    measured_on = Device.from_json({**header["device"], "threads": host})
    assert file.name == shipped.file_name(measured_on)
    assert len(shipped.for_compiling(measured_on).trials) == len(read_log(file).trials)
    other = Device.from_json({**header["device"], "model": "NVIDIA H200"})
    assert shipped.for_compiling(other) is None
    assert shipped.for_tuning(other) is not None
    older = {**header["device"]["target"], "arch": "sm_80"}
    assert shipped.for_tuning(Device.from_json({**header["device"], "target": older})) is None


def sections(file: Path) -> list[tuple[dict, set[str]]]:
    """The file's headers, and the keys of the tasks that follow each."""
    found: list[tuple[dict, set[str]]] = []
    for line in lzma.decompress(file.read_bytes()).splitlines():
        record = json.loads(line)
        if record["type"] == "header":
            found.append((record, set()))
        elif record["type"] == "task":
            found[-1][1].add(record["task"])
    return found


def sample(file: Path) -> list[tuple[dict, set[str]]]:
    """Few sections that together have records of all implementations in the file. The soak run checks
    the others."""
    of_task: dict[str, set[str]] = {}
    for trial in read_log(file).trials:
        of_task.setdefault(trial.task, set()).add(trial.implementation)
    candidates = sections(file)
    used = [
        set().union(*(of_task[key] for key in keys if key in of_task)) for _, keys in candidates
    ]
    chosen: list[int] = []
    while left := set().union(*used).difference(*(used[i] for i in chosen)):
        # Planning a network takes as long as ten tasks, and the time of its own.
        gains = [
            len(found & left) / (10 + len(keys))
            for found, (_, keys) in zip(used, candidates, strict=True)
        ]
        chosen.append(gains.index(max(gains)))
    return [candidates[i] for i in chosen]


@pytest.mark.long
@pytest.mark.parametrize(
    "sections_of",
    [pytest.param(sample, marks=pytest.mark.slow), pytest.param(sections, marks=pytest.mark.soak)],
)
@pytest.mark.parametrize("file", FILES, ids=[path.name for path in FILES])
def test_the_records_of_the_package_still_apply(file, sections_of):
    """A change of an operator, a pass or a space that orphans them must make them anew."""
    log = read_log(file)
    implementations = {}
    checked: set[str] = set()
    for header, keys in sections_of(file):
        checked |= keys
        device, network = Device.from_json(header["device"]), header["network"]
        attrs = {"mcpu": device.target.get("mcpu"), "threads": 1}
        if device.backend == "cuda":
            attrs = {**device.attrs, "arch": device.target["arch"]}
        made = api.plan(
            networks.reload(network["source"]),
            device.backend,
            attrs=attrs,
            layout=network["layout"],
        )
        for task in made.tasks:
            for implementation in task.implementations:
                implementations[task.key, implementation.name] = implementation
    trials = [trial for trial in log.trials if trial.task in checked]
    assert trials
    orphans = []
    for trial in trials:
        found = implementations.get((trial.task, trial.implementation))
        if found is None or trial.candidate != structure(traces.apply(found.mod, trial.trace).mod):
            orphans.append(f"{log.tasks[trial.task]['name']} ({trial.implementation})")
    assert orphans == [], "make them anew: scripts/ship_records.py"
