"""MetaSchedule databases: out, and back."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest

from cli.commands import complaint, tvmtune
from models import tiny_cnn, tiny_encoder
from records.sample_log import device, header, task, trial
from tvmtune import api
from tvmtune.compiling.compile import choose_records
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.passes import pipeline
from tvmtune.records.best import select
from tvmtune.records.database import FILES, export, read_records
from tvmtune.records.log import LogWriter, read_log
from tvmtune.tuning.budget import Budget
from tvmtune.types import Timing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("database") / "tiny.onnx"
    onnx.save(tiny_cnn(), path)
    return api.plan(api.load(str(path)))


@pytest.fixture(scope="module")
def log(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("database") / "log.json"
    api.tune(plan, path, budget=Budget(trials=len(plan.tasks)), timing=Timing(repeat=3))
    return read_log(path)


PLAIN_TVM = """
import sys
sys.modules["tvmtune"] = None  # whatever would import it fails
import json, pathlib
import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

folder = pathlib.Path(sys.argv[1])
program = tvm.ir.load_json((folder / "program.json").read_text())
target = tvm.target.Target(json.loads((folder / "target.json").read_text()))
database = ms.database.JSONDatabase(work_dir=str(folder / "db"), allow_missing=False)
with target, database, tvm.transform.PassContext(opt_level=3):
    applied = relax.transform.MetaScheduleApplyDatabase()(program)
    applied = relax.transform.SplitLayoutRewritePreproc()(applied)
    applied = relax.transform.FoldConstant()(applied)
    built = tvm.compile(applied, target)
machine = relax.VirtualMachine(built, tvm.cpu())
given = tvm.runtime.tensor(np.load(folder / "input.npy"))
np.save(folder / "output.npy", machine["main"](given).numpy())
scheduled = [f for f in applied.functions.values() if (f.attrs or {}).get("tirx.is_scheduled")]
print(len(database), len(scheduled))
"""


def test_a_process_without_tvmtune_compiles_with_the_database(plan, log, tmp_path):
    """Plain TVM: apply the database to the legalized network, build, run, compare."""
    import tvm

    export(select([log]), tmp_path / "db")
    program = pipeline.legalize(plan.prepared.graph, plan.device)
    (tmp_path / "program.json").write_text(tvm.ir.save_json(program))
    (tmp_path / "target.json").write_text(json.dumps(plan.device.target))
    inputs = random_inputs(plan.network.inputs)
    np.save(tmp_path / "input.npy", inputs["data"])
    ran = subprocess.run(
        [sys.executable, "-c", PLAIN_TVM, tmp_path], capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    records, scheduled = map(int, ran.stdout.split()[-2:])
    assert records == len(plan.tasks)
    assert scheduled >= len(plan.tasks)
    want = plan.network.reference(inputs)[0]
    np.testing.assert_allclose(np.load(tmp_path / "output.npy"), want, rtol=1e-3, atol=1e-4)


def test_a_database_serves_compile_and_distill_as_the_log_does(plan, log, tmp_path):
    """Also for other implementations than the direct one, which a database does not name."""
    export(select([log], top=3), tmp_path / "db")
    read = read_records(tmp_path / "db", plan.device)
    chosen = choose_records([read], plan.tasks, plan.device)
    expected = choose_records([log], plan.tasks, plan.device)
    assert {k: (t.implementation, t.latency) for k, t in chosen.items()} == {
        k: (t.implementation, t.latency) for k, t in expected.items()
    }
    out = tvmtune("distill", "db", "-o", "back.json", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    compiled = api.compile(plan, tmp_path / "lib.so", [tmp_path / "back.json"])
    assert compiled.counts["exact"] == len(plan.tasks)


def test_a_database_of_other_kernels_is_refused(log, tmp_path):
    export(select([log]), tmp_path / "db")
    onnx.save(tiny_encoder(), tmp_path / "encoder.onnx")
    out = tvmtune("compile", "encoder.onnx", "--log", "db", "-o", "lib.so", cwd=tmp_path)
    assert out.returncode == 1
    assert complaint(out.stderr).startswith("db: no workload of the database is a kernel of this")


def test_records_of_other_processors_are_not_used(plan, log, tmp_path):
    export(select([log]), tmp_path / "db")
    for change, message in (
        ({"mcpu": "atom"}, "mcpu .* instead of atom"),
        ({"kind": "c"}, "kind llvm instead of c"),
    ):
        other = replace(plan.device, target={**plan.device.target, **change})
        with pytest.raises(TvmtuneError, match=message):
            read_records(tmp_path / "db", other)
    more = replace(plan.device, threads=plan.device.threads + 1)
    with pytest.raises(TvmtuneError, match="cores instead of"):
        read_records(tmp_path / "db", more)


def test_a_database_of_plain_metaschedule_is_read(plan, tmp_path):
    """Tuned by TVM alone; failed trials and impossible times are left out."""
    from tvm.s_tir import meta_schedule as ms

    task = plan.tasks[-1]
    implementation = task.implementation("direct")
    target = {**plan.device.target}
    database = ms.database.JSONDatabase(work_dir=str(make(tmp_path / "db")))
    workload = database.commit_workload(implementation.mod)
    schedule = implementation.space.default(implementation.mod, _target(target))
    for seconds in ([1e10], [2e-3, 4e-3], [-1.0]):
        database.commit_tuning_record(
            ms.database.TuningRecord(schedule.trace, workload, seconds, _target(target))
        )
    read = read_records(tmp_path / "db", plan.device)
    assert [t.latency for t in read.trials] == [3e-3]
    assert [line["anchor"] for line in read.tasks.values()] == [task.anchor_key]
    chosen = choose_records([read], plan.tasks, plan.device)
    assert {key: t.latency for key, t in chosen.items()}[task.key] == 3e-3


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, UsageError, f"it has no {FILES[0]} and no {FILES[1]}"),
        ({FILES[0]: ""}, UsageError, f"it has no {FILES[1]}"),
        ({FILES[0]: "[1]\n", FILES[1]: ""}, TvmtuneError, "no MetaSchedule database"),
        ({FILES[0]: "{", FILES[1]: "[0"}, TvmtuneError, "no MetaSchedule database"),
        ({FILES[0]: "", FILES[1]: ""}, TvmtuneError, "a database without records"),
    ],
)
def test_other_directories_are_refused(plan, tmp_path, files, error, message):
    folder = make(tmp_path / "db")
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(error, match=message):
        read_records(folder, plan.device)
    assert {p.name: p.read_text() for p in folder.iterdir()} == files


def make(folder):
    folder.mkdir()
    return folder


def _target(described):
    import tvm

    return tvm.target.Target(described)


def test_a_database_is_replaced_as_a_whole(log, tmp_path):
    for _ in range(2):
        export(select([log]), tmp_path / "db")
    assert sorted(p.name for p in (tmp_path / "db").iterdir()) == sorted(FILES)
    workloads = (tmp_path / "db" / FILES[0]).read_text().splitlines()
    assert len(workloads) == len(set(workloads)) == len(log.tasks)
    assert all(isinstance(json.loads(line), list) for line in workloads)
    assert [p.name for p in tmp_path.iterdir()] == ["db"]


def test_records_of_several_devices_are_rejected(log, tmp_path):
    path = tmp_path / "two.json"
    with LogWriter(path) as writer:
        for threads in (1, 2):
            of = device(threads=threads)
            writer.append("header", header(of))
            writer.append("task", task("a"))
            writer.trial(trial("a", "0x1", 1e-3, device=of.identity()))
    with pytest.raises(UsageError, match="does not distinguish devices"):
        export(select([read_log(path)]), tmp_path / "db")
    assert not (tmp_path / "db").exists()


def test_a_directory_with_other_files_is_left_alone(log, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="holds other files"):
        export(select([log]), tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is not a directory"):
        export(select([log]), tmp_path / "file")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_record_without_its_workload_is_named(tmp_path):
    path = tmp_path / "bare.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
        writer.append("task", task("a"))
        writer.trial(trial("a", "0x1", 1e-3, device=device().identity()))
    with pytest.raises(TvmtuneError, match="task a has no stored workload"):
        export(select([read_log(path)]), tmp_path / "db")
    assert not (tmp_path / "db").exists()
