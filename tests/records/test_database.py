"""Export to a MetaSchedule database."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from models import tiny_cnn
from records.sample_log import device, header, task, trial
from tvmtune import api
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.passes import pipeline
from tvmtune.records.best import select
from tvmtune.records.database import FILES, export
from tvmtune.records.log import LogWriter, read_log
from tvmtune.tuning.budget import Budget

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("database") / "tiny.onnx"
    onnx.save(tiny_cnn(), path)
    return api.plan(api.load(str(path)))


@pytest.fixture(scope="module")
def log(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("database") / "log.json"
    api.tune(plan, path, budget=Budget(trials=len(plan.tasks)))
    return read_log(path)


def test_metaschedule_finds_a_schedule_for_every_kernel(plan, log, tmp_path):
    """As a program without tvmtune would: apply the database, build, run."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    export(select([log]), tmp_path / "db")
    target = tvm.target.Target(plan.device.target)
    program = pipeline.legalize(plan.prepared.graph, plan.device)
    database = ms.database.JSONDatabase(work_dir=str(tmp_path / "db"))
    assert len(database) == len(plan.tasks)
    with target, database, tvm.transform.PassContext(opt_level=3):
        applied = relax.transform.MetaScheduleApplyDatabase()(program)
        applied = relax.transform.SplitLayoutRewritePreproc()(applied)
        applied = relax.transform.FoldConstant()(applied)
        built = tvm.compile(applied, target)
    scheduled = [f for f in applied.functions.values() if (f.attrs or {}).get("tirx.is_scheduled")]
    assert len(scheduled) >= len(plan.tasks)
    inputs = random_inputs(plan.network.inputs)
    machine = relax.VirtualMachine(built, tvm.cpu())
    got = machine["main"](*[tvm.runtime.tensor(inputs[s.name]) for s in plan.network.inputs])
    np.testing.assert_allclose(got.numpy(), plan.network.reference(inputs)[0], rtol=1e-3, atol=1e-4)


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
    with pytest.raises(UsageError, match="does not tell devices apart"):
        export(select([read_log(path)]), tmp_path / "db")
    assert not (tmp_path / "db").exists()


def test_a_directory_with_other_files_is_left_alone(log, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="holds other files"):
        export(select([log]), tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is no directory"):
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
