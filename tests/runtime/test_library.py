"""An open library: outputs, threads, times, profile."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from libraries import make_library
from models import tiny_encoder
from tvmtune import networks
from tvmtune.bench import verify
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.machine.threads import allowed_cpus
from tvmtune.networks.inputs import random_inputs
from tvmtune.runtime.library import Library

two_cpus = pytest.mark.skipif(len(allowed_cpus()) < 2, reason="needs two CPUs")


@pytest.mark.slow
def test_outputs_equal_those_of_the_network(tiny_library, opened):
    network = networks.load(str(tiny_library.with_name("model.onnx")))
    inputs = random_inputs(opened.inputs, 5)
    (got,) = opened.run(inputs)
    (want,) = network.reference(inputs)
    assert verify.relative_error(got, want) < 1e-5
    assert verify.run_check(opened, opened.metadata["check"]).passed


@pytest.mark.slow
def test_outputs_are_copies(opened):
    inputs = random_inputs(opened.inputs, 0)
    (first,) = opened.run(inputs)
    kept = first.copy()
    opened.run(random_inputs(opened.inputs, 1))
    assert (first == kept).all()


@pytest.mark.slow
def test_several_inputs_and_outputs(tmp_path):
    library = Library.open(make_library(tiny_encoder(), tmp_path, threads=1))
    assert [spec.name for spec in library.inputs] == ["ids", "mask"]
    assert [spec.name for spec in library.outputs] == ["hidden", "pooled"]
    assert verify.run_check(library, library.metadata["check"]).passed
    inputs = random_inputs(library.inputs, 0)
    swapped = dict(reversed(inputs.items()))
    assert (library.run(inputs)[0] == library.run(swapped)[0]).all()


@pytest.mark.slow
def test_a_library_with_a_wrong_weight_fails_the_check(wrong):
    library = Library.open(wrong)
    result = verify.run_check(library, library.metadata["check"])
    assert not result.passed
    assert 1e-3 < result.error < 10


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({}, ["lacks data", "1x3x32x32 float32"]),
        ({"data": np.zeros((1, 3, 8, 8), "float32")}, ["1x3x8x8 float32", "1x3x32x32 float32"]),
        ({"data": np.zeros((1, 3, 32, 32))}, ["1x3x32x32 float64", "1x3x32x32 float32"]),
        ({"x": np.zeros((1, 3, 32, 32), "float32")}, ["unexpected x", "lacks data"]),
    ],
)
def test_mismatched_inputs_are_named_with_the_expected_ones(opened, inputs, expected):
    with pytest.raises(UsageError) as raised:
        opened.run(inputs)
    for part in expected:
        assert part in str(raised.value)


def test_inputs_need_not_be_contiguous(opened):
    inputs = random_inputs(opened.inputs, 0)
    turned = np.asfortranarray(inputs["data"])
    assert (opened.run({"data": turned})[0] == opened.run(inputs)[0]).all()


def test_times_are_seconds_per_call(opened):
    inputs = random_inputs(opened.inputs, 0)
    times = opened.time(inputs, number=10, repeat=5, warmup=0)
    assert len(times) == 5
    assert all(1e-6 < seconds < 0.1 for seconds in times)
    assert len(opened.time(number=1, repeat=2, min_repeat_ms=2, warmup=0)) == 2


def test_timing_without_inputs_is_an_error(tiny_library):
    library = Library.open(tiny_library)
    with pytest.raises(UsageError, match="no inputs yet"):
        library.time()
    with pytest.raises(UsageError, match="no inputs yet"):
        library.profile()


def test_the_profile_names_the_kernels_and_sums_to_one(opened):
    inputs = random_inputs(opened.inputs, 0)
    rows = opened.profile(inputs, repeat=10)
    assert sum(row.name.startswith("fused_conv2d") for row in rows) == 4
    assert all(row.calls == 1 for row in rows)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert rows[0].ms >= rows[1].ms
    assert "between" in rows[-1].name
    assert not any(row.name.startswith("vm.") for row in rows)
    # The hook is removed again.
    assert opened.run(inputs)[0].shape == (1, 10)


def in_a_fresh_process(code: str, *args: object) -> dict:
    """The JSON that ``code`` prints, run before TVM's pool exists."""
    prelude = (
        "import json, os, sys\nos.environ.pop('TVM_NUM_THREADS', None)\n"
        "from tvmtune.runtime.library import Library\n"
    )
    command = [sys.executable, "-c", prelude + code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@two_cpus
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.slow
def test_the_requested_number_of_threads_is_used(tiny_library, threads):
    """By itself TVM takes half of the CPUs and binds the caller to one of them."""
    found = in_a_fresh_process(
        "import tvm\n"
        "from tvmtune.networks.inputs import random_inputs\n"
        "before = sorted(os.sched_getaffinity(0))\n"
        "alone = os.listdir('/proc/self/task')\n"
        "library = Library.open(sys.argv[1], threads=int(sys.argv[2]))\n"
        "library.run(random_inputs(library.inputs, 0))\n"
        "tasks = [int(task) for task in os.listdir('/proc/self/task')]\n"
        "print(json.dumps({'pool': 1 + len(tasks) - len(alone),\n"
        "  'threads': library.threads, 'before': before,\n"
        "  'affinities': [sorted(os.sched_getaffinity(task)) for task in tasks]}))\n",
        tiny_library,
        threads,
    )
    assert found["pool"] == found["threads"] == threads
    assert all(cpus == found["before"] for cpus in found["affinities"])


@pytest.mark.slow
@two_cpus
def test_an_existing_pool_of_tvms_that_is_too_small_is_reported():
    found = in_a_fresh_process(
        "import tvm\n"
        "from tvmtune.machine import threads\n"
        "tvm.get_global_func('runtime.config_threadpool')(-3, 1, ['0'])\n"
        "tvm.get_global_func('runtime.NumThreads')()\n"
        "os.sched_setaffinity(0, range(os.cpu_count()))\n"
        "try: threads.share(2)\n"
        "except Exception as exc: print(json.dumps({'error': f'{type(exc).__name__} {exc}'}))\n"
    )
    assert found["error"].startswith("TvmtuneError TVM's thread pool has 1 threads instead of 2")


@pytest.mark.parametrize("threads", [0, -1, 4096])
def test_impossible_numbers_of_threads_are_refused(tiny_library, threads):
    with pytest.raises(UsageError, match="number of threads must be from 1 to"):
        Library.open(tiny_library, threads=threads)


@pytest.mark.slow
def test_a_file_that_was_replaced_is_opened_beside_the_old_one(copy, wrong, opened):
    """The loader would return the old library, which it knows by this path."""
    inputs = opened.random_inputs()
    first = Library.open(copy)
    (before,) = first.run(inputs)
    shutil.copy(wrong, copy.with_suffix(".new"))
    copy.with_suffix(".new").replace(copy)
    second = Library.open(copy)
    (changed,) = second.run(inputs)
    assert not np.array_equal(changed, before)
    np.testing.assert_array_equal(first.run(inputs)[0], before)
    np.testing.assert_array_equal(Library.open(copy).run(inputs)[0], changed)


def test_names_without_suffix_or_directory_load(tiny_library, tmp_path, monkeypatch):
    shutil.copy(tiny_library, tmp_path / "classifier")
    monkeypatch.chdir(tmp_path)
    library = Library.open("classifier")
    assert verify.run_check(library, library.metadata["check"]).passed


def test_code_that_the_loader_refuses_gives_one_message(tmp_path, tiny_library):
    from library.test_metadata import foreign_library
    from tvmtune.library import metadata

    path = tmp_path / "lib.so"
    path.write_bytes(foreign_library().read_bytes())
    metadata.append(path, metadata.read(tiny_library))
    with pytest.raises(TvmtuneError, match="cannot load"):
        Library.open(path)


def test_scalar_inputs_and_outputs(tmp_path):
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "s"], ["h"]), helper.make_node("Exp", ["s"], ["e"])],
        "scalar",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("h", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("e", TensorProto.FLOAT, []),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    library = Library.open(make_library(model, tmp_path, threads=1))
    x, s = np.ones((2, 3), "float32"), np.array(2.0, "float32")
    h, e = library.run({"x": x, "s": s})
    np.testing.assert_allclose(h, 2 * x)
    assert e.shape == ()
    np.testing.assert_allclose(e, np.exp(2.0), rtol=1e-6)


@pytest.mark.slow
def test_run_needs_only_the_packages_of_a_board(tiny_library, tmp_path):
    """docs/farm.md: boards have TVM, NumPy, click and pluggy."""
    missing = ("elftools", "onnx", "psutil", "rich", "scipy", "tornado", "xgboost")
    code = (
        "import sys\n"
        f"for name in {missing!r}: sys.modules[name] = None\n"
        "from tvmtune.cli import main\n"
        "main()\n"
    )
    truncated = tmp_path / "truncated.so"
    truncated.write_bytes(tiny_library.read_bytes()[:5000])
    for path, status, expected in ((tiny_library, 0, "logits"), (truncated, 1, "is truncated")):
        done = subprocess.run(
            [sys.executable, "-c", code, "run", path], capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
        assert expected in done.stdout + done.stderr
