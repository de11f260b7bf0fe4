"""A user's template is a second space of the operator's own workload."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels import run_kernel, this_machine
from tvmtune import networks
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import random_inputs
from tvmtune.passes import pipeline
from tvmtune.spaces.knobs import designs
from tvmtune.tasks.extract import TEMPLATE, extract_tasks
from tvmtune.types import Device, Task

RGB2YUV = Path(__file__).parents[2] / "examples" / "rgb2yuv.py"


def tasks_of(path: Path, device: Device | None = None, **arguments: int) -> list[Task]:
    device = device or this_machine()
    network = networks.load(str(path), arguments=arguments)
    return extract_tasks(pipeline.prepare(network, device), device)


def test_an_operator_with_a_template_is_one_task_with_two_spaces():
    (task,) = tasks_of(RGB2YUV, w=64, h=16)
    assert [i.name for i in task.implementations] == ["direct", TEMPLATE]
    assert len({i.workload_key for i in task.implementations}) == 1


def test_the_size_of_the_template_space_is_known():
    import tvm

    (task,) = tasks_of(RGB2YUV, w=64, h=16)
    space = task.implementation(TEMPLATE).space
    target = tvm.target.Target(this_machine().target)
    (knobs,) = designs(task.implementation(TEMPLATE), target)
    assert [k.name for k in knobs] == ["yuv.1", "yuv.0"]
    assert space.size == 28 * 5  # 64 into 3 and 16 into 2 factors


@pytest.mark.slow
def test_the_default_schedule_of_a_template_is_correct():
    import tvm

    (task,) = tasks_of(RGB2YUV, w=64, h=16)
    network = networks.load(str(RGB2YUV), arguments={"w": 64, "h": 16})
    implementation = task.implementation(TEMPLATE)
    target = tvm.target.Target(this_machine().target)
    schedule = implementation.space.default(implementation.mod, target)
    inputs = random_inputs(network.inputs)
    got = run_kernel(schedule.mod, [inputs["rgb"]])
    np.testing.assert_allclose(got, network.reference(inputs)[0], rtol=1e-5, atol=1e-6)


def test_the_gpu_template_binds_threads():
    import tvm

    opencl = {"kind": "opencl", "max_threads_per_block": 1024, "host": {"kind": "llvm"}}
    (task,) = tasks_of(RGB2YUV, Device("opencl", opencl, 1, runtime="opencl"), w=64, h=16)
    implementation = task.implementation(TEMPLATE)
    schedule = implementation.space.default(implementation.mod, tvm.target.Target(opencl))
    script = schedule.mod["main"].script()
    assert 'thread="threadIdx.x"' in script
    assert implementation.space.size == 5


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ('sch.get_sblock("absent")', "template of 'rgb2yuv' for 'cpu' fails at .*line 3.: "),
        ("raise ValueError('not today')", "line 3.: ValueError: not today"),
        ("sch.sample_categorical([], [])", "template of 'rgb2yuv' for 'cpu' fails"),
        (
            "[sch.parallel(x) for x in sch.get_loops(sch.get_sblock('yuv'))[:0]]\n"
            "    sch.split(sch.get_loops(sch.get_sblock('yuv'))[1], "
            "[None, sch.sample_categorical([4, 7], [0.5, 0.5]) - sch.sample_categorical([4, 7], "
            "[0.5, 0.5])])",
            "fails at|empty space",
        ),
    ],
)
def test_an_invalid_template_is_reported_before_tuning(tmp_path, body, cause):
    head = RGB2YUV.read_text().split('@rgb2yuv.template("cpu")')[0]
    path = tmp_path / "op.py"
    path.write_text(f'{head}@rgb2yuv.template("cpu")\ndef t(sch):\n    {body}\n')
    with pytest.raises(TvmtuneError, match=cause):
        tasks_of(path, w=64, h=16)
