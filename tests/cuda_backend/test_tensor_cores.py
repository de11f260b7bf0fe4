"""Tensor cores: the tasks that can use them, and the errors if none can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import tvm

from cli.commands import complaint, tvmtune
from cuda_backend.libraries import device_code, record
from kernels import sample_modules
from models import tiny_cnn
from tvmtune import api
from tvmtune.errors import TvmtuneError
from tvmtune.spaces import traces
from tvmtune.types import Implementation, Task
from tvmtune_cuda import build, tensor_cores

ATTRS = {"arch": "sm_80", tensor_cores.NAME: 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save(tiny_cnn(), path)
    return path


@pytest.fixture(scope="module")
def plan(nvcc, model) -> api.Plan:
    return api.plan(api.load(str(model), dtype="float16"), "cuda", attrs=ATTRS)


@pytest.fixture(scope="module")
def offered(plan) -> dict[str, tuple[Task, Implementation]]:
    """Tasks with a tensor-core implementation, by name."""
    return {
        task.name: (task, each)
        for task in plan.tasks
        for each in task.implementations
        if each.name == tensor_cores.NAME
    }


@pytest.mark.slow
def test_dense_convolutions_and_matrix_products_can_use_them(plan, offered):
    products = [t.name for t in plan.tasks if "conv2d" in t.name or "matmul" in t.name]
    assert len(products) == 5
    (depthwise,) = {*products} - {*offered}  # each channel separately: not a matrix product
    assert "conv2d" in depthwise
    assert len(offered) == 4


@pytest.mark.slow
def test_they_are_an_additional_implementation(offered):
    """A kernel may be faster without them."""
    for task, _ in offered.values():
        assert task.implementations[0].name == "direct"


@pytest.mark.slow
def test_the_kernel_source_uses_wmma(plan, offered, tmp_path):
    options = plan.backend.make_builder(plan.device).options
    target = tvm.target.Target(plan.device.target)
    _, each = max(offered.values(), key=lambda pair: pair[0].flop)
    with build.sources(), tvm.transform.PassContext(config=options["config"]):
        schedule = each.space.default(each.mod, target)
        library = tvm.compile(schedule.mod, target=target)
        (source,) = build._sources(getattr(library, "mod", library))
        path = build.build(schedule.mod, plan.device.target, options, str(tmp_path))
    assert "wmma::mma_sync" in source
    (code,) = device_code(Path(path))
    assert b"main_kernel" in code


@pytest.mark.slow
def test_a_trace_applies_in_a_fresh_process(plan, offered, tmp_path):
    _, each = next(iter(offered.values()))
    target = tvm.target.Target(plan.device.target)
    stored = {
        "module": traces.store_module(each.mod),
        "trace": traces.to_json(each.space.default(each.mod, target)),
    }
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(stored))
    code = (
        "import json, sys; from tvmtune.spaces import traces, tensor_intrinsics; "
        "tensor_intrinsics.load_for('cuda'); "
        "stored = json.load(open(sys.argv[1])); "
        "mod = traces.load_module(stored['module']); "
        "print(traces.apply(mod, stored['trace']).mod.script().count('mma_sync'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 0


@pytest.mark.slow
def test_tensor_core_records_are_compiled(plan, offered, tmp_path):
    chosen = {task.key: record(plan, task, each) for task, each in offered.values()}
    lowered = plan.backend.lower(plan.prepared, chosen, plan.device)
    kinds = json.loads(lowered.attrs["tvmtune_record"])
    assert [key for key, how in kinds.items() if how == "exact"] == [*chosen]
    path = plan.backend.export_lib(lowered, plan.device, tmp_path / "lib.so")
    assert len(device_code(path)) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            ("cuda", "--target-attr", "arch=sm_80", "--tensor-cores"),
            "multiplies float16",
            marks=pytest.mark.slow,
        ),
        (("cuda", "--target-attr", "tensor-cores=2"), "give 1"),
        (("cpu", "--tensor-cores"), "'tensor-cores' is not known"),
    ],
)
def test_unusable_tensor_cores_are_an_error(words, message, model, nvcc, tmp_path):
    done = tvmtune("tasks", model, "--target", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in complaint(done.stderr)


@pytest.mark.soak
def test_sampled_tensor_core_schedules_compile(nvcc, tmp_path):
    plan = api.plan(
        api.load("resnet-18", dtype="float16"), "cuda", attrs={**ATTRS, "arch": "sm_90"}
    )
    options = plan.backend.make_builder(plan.device).options
    built, refused = 0, 0
    with build.sources():
        for task in plan.tasks[1::4]:
            for each in task.implementations:
                if each.name != tensor_cores.NAME:
                    continue
                for mod in sample_modules(each.mod, each.space, 2):
                    try:
                        path = build.build(mod, plan.device.target, options, str(tmp_path))
                    except TvmtuneError as error:
                        # TVM 0.27 generates this for eight halves from eight addresses.
                        assert "too many arguments in function call" in str(error)
                        refused += 1
                        continue
                    assert device_code(Path(path)), task.name
                    Path(path).unlink()
                    built += 1
    assert built >= 8
    assert refused <= built / 4
