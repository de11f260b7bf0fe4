"""The example backend: installed by pip, it tunes a network with its own convolution algorithm."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from cli.commands import tvmtune
from kernels import convolution_of, error, kernel, one_conv, prepared, random_args, run_kernel
from models import tiny_cnn
from test_host import example  # noqa: F401 - a fixture
from tvmtune.records.log import read_log
from tvmtune.runtime.library import Library

SOURCES = Path(__file__).resolve().parents[1] / "examples" / "third_party_backend"


@pytest.fixture
def im2col(monkeypatch):
    """The example's algorithm, from its sources."""
    monkeypatch.syspath_prepend(SOURCES)
    from tvmtune_example.im2col import IM2COL

    yield IM2COL
    for name in ("tvmtune_example", "tvmtune_example.im2col"):
        sys.modules.pop(name, None)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "case",
    [
        {"shape": (1, 16, 7, 7)},
        {"shape": (2, 16, 9, 5), "pads": (0, 1, 2, 0)},
        {"shape": (1, 3, 17, 17), "kernel": 7, "pads": (3, 3, 3, 3), "stride": 2},
        {"shape": (1, 16, 12, 12), "pads": (2, 2, 2, 2), "dilation": 2},
    ],
)
def test_im2col_equals_the_direct_convolution(im2col, case):
    network = prepared(one_conv(**case))
    assert im2col.applies(convolution_of(network))
    direct, matrices = kernel(network), kernel(network, im2col)
    assert "im2col_product" in matrices.script()
    args = random_args(direct)
    shape = [int(n) for n in matrices["main"].params[1].shape]
    computed = run_kernel(matrices, [args[0], args[1].reshape(shape), *args[2:]])
    assert error(computed, run_kernel(direct, args)) < 1e-5


@pytest.mark.parametrize(
    "case", [{"groups": 2}, {"constant": False}, {"kernel": 1, "pads": (0, 0, 0, 0)}]
)
def test_im2col_does_not_apply_to_other_convolutions(im2col, case):
    assert not im2col.applies(convolution_of(prepared(one_conv((1, 16, 8, 8), **case))))


@pytest.mark.slow
def test_a_plugins_implementation_is_listed_tuned_chosen_and_correct(example, tmp_path):  # noqa: F811
    model = tmp_path / "model.onnx"
    onnx.save(tiny_cnn(), model)
    path = os.pathsep.join(filter(None, [str(example), os.environ.get("PYTHONPATH")]))

    def run(*words: object) -> str:
        done = tvmtune(*words, cwd=tmp_path, env={"PYTHONPATH": path}, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # listed
    tasks = json.loads(run("tasks", model, "--target", "example", "--json"))["tasks"]
    offered = {t["workload_key"]: [i["name"] for i in t["implementations"]] for t in tasks}
    mine = [key for key, names in offered.items() if "im2col" in names]
    indices = [str(t["index"]) for t in tasks if t["workload_key"] in mine]
    assert len(mine) == 2  # the strided and the residual convolution
    assert ["direct", "winograd", "im2col"] in offered.values()

    # tuned
    log = tmp_path / "log.json"
    words = ["--repeat", 2, "--trials", 64, "--scheduler", "round-robin"]
    words += ["--tasks", ",".join(indices), "--no-compile", "--log", log]
    run("tune", "--target", "example", "--network", model, *words)
    trials = [t for t in read_log(log).trials if t.implementation == "im2col"]
    assert {t.task for t in trials} == set(mine)
    assert any(t.searched for t in trials)
    assert all(t.ok for t in trials if not t.searched)

    # chosen: the only records left of these two tasks
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    kept = [x for x in lines if x.get("task") not in mine or x.get("implementation") == "im2col"]
    only = tmp_path / "only.json"
    only.write_text("".join(json.dumps(line) + "\n" for line in kept))
    library = tmp_path / "lib.so"
    run("compile", model, "--target", "example", "--log", only, "-o", library)
    kernels = Library.open(library).metadata["tasks"]["list"]
    chosen = [each["record"] for each in kernels if each["implementation"] == "im2col"]
    assert chosen == ["exact", "exact"]

    # correct
    data = np.random.RandomState(1).standard_normal((1, 3, 32, 32)).astype("float32")
    (computed,) = Library.open(library).run({"data": data})
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"data": data})
    assert error(computed, expected) < 1e-4
