"""CUDA targets: which GPU they describe, and the errors if there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import onnx
import pytest

from cli.commands import complaint, tvmtune
from models import tiny_cnn
from tvmtune import api
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.machine import triples
from tvmtune.types import Device
from tvmtune_cuda import gpus
from tvmtune_cuda.target import describe_device

RESNET = ("resnet-18", "--shape", "data:1x3x32x32", "--target", "cuda")


@pytest.fixture(autouse=True)
def _compiler(nvcc):
    """Every test needs nvcc."""


def described(**environment: str) -> dict[str, Any]:
    """The GPUs as a process with these environment variables describes them."""
    code = "import json; from tvmtune_cuda import gpus; print(json.dumps(gpus.describe()))"
    env = os.environ | environment
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    return json.loads(done.stdout)


def test_an_architecture_needs_no_gpu():
    device = describe_device({"arch": "sm_90"}, None)
    assert device.absent
    assert device.target["arch"] == "sm_90"
    assert device.target["host"]["kind"] == "llvm"
    assert (device.params["warp_size"], device.params["max_threads_per_block"]) == (32, 1024)
    assert not triples.can_run(device)


def test_an_absent_gpu_stays_absent_with_other_hardware_parameters(tmp_path):
    """Else compile would run the library to check it."""
    model = tmp_path / "model.onnx"
    onnx.save(tiny_cnn(), model)
    params = {"max_vthread_extent": 4}
    plan = api.plan(api.load(str(model)), "cuda", attrs={"arch": "sm_90"}, params=params)
    assert plan.device.params["max_vthread_extent"] == 4
    assert plan.device.absent


def test_a_tvm_tag_needs_no_gpu():
    device = describe_device({"tag": "nvidia/nvidia-a100"}, None)
    assert device.target["arch"] == "sm_80"
    assert device.params["l2_cache_bytes"] == 40 << 20
    assert device.model == "nvidia/nvidia-a100"


def test_a_board_tag_sets_the_host_triple():
    device = describe_device({"tag": "nvidia/jetson-agx-orin-64gb"}, None)
    assert device.mtriple.startswith("aarch64")


def test_presence_is_not_part_of_the_device():
    """Logs and libraries made without the GPU are for the same device."""
    device = describe_device({"arch": "sm_90"}, None)
    assert not Device.from_json(device.to_json()).absent


@pytest.mark.slow
def test_the_installed_gpu_is_queried(driver, tmp_path):
    done = tvmtune("tasks", *RESNET, "--json", cwd=tmp_path, env=driver(arch=86))
    assert done.returncode == 0, done.stderr
    description = described(**driver(arch=86))
    assert description["driver"] == [13, 0]
    gpu = gpus.check(description)
    assert (gpu["name"], gpu["arch"]) == ("NVIDIA Stand-in", "sm_86")
    assert (gpu["multi_processors"], gpu["l2_cache_bytes"]) == (132, 50 << 20)
    assert gpu["memory_bytes"] == 80 << 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"status": 100}, "the driver finds no NVIDIA GPU"),
        ({"count": 0}, "the driver finds no NVIDIA GPU"),
        ({"status": 34}, "stub, not the driver's"),
        ({"status": 803}, "of different versions: restart"),
        ({"status": 999}, "the driver cannot be used: CUDA_ERROR_UNKNOWN"),
        ({"version": 12080}, "supports CUDA 12.8, and TVM's runtime needs 13.0: install a newer"),
    ],
)
def test_driver_problems_are_reported(driver, settings, message):
    with pytest.raises(TvmtuneError, match=message):
        gpus.check(described(**driver(**settings)))


@pytest.mark.slow
def test_without_a_driver_the_message_lists_the_remedies(tmp_path):
    done = tvmtune("tune", *RESNET, cwd=tmp_path)
    assert done.returncode == 1
    message = complaint(done.stderr)
    assert "driver is not installed" in message
    assert "--remote KEY" in message
    assert "--target-attr arch=sm_90" in message


@pytest.mark.slow
def test_tuning_for_an_absent_gpu_fails_immediately(tmp_path):
    done = tvmtune("tune", *RESNET, "--target-attr", "arch=sm_90", cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no NVIDIA GPU of sm_90 in this machine to measure on" in complaint(done.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_gpu_of_another_architecture_counts_as_absent(driver, tmp_path):
    env = driver(arch=80)
    done = tvmtune("tune", *RESNET, "--target-attr", "arch=sm_90", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "to measure on" in complaint(done.stderr)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"arch": "sm_9"}, "arch=sm_9 is not an NVIDIA architecture"),
        ({"arch": "gfx90a"}, "arch=gfx90a is not an NVIDIA architecture"),
        ({"arch": "sm_70"}, "arch=sm_70: TVM's runtime needs CUDA 13, for sm_75 and later"),
        ({"arch": "sm_99"}, "arch=sm_99: .* does not compile for it. Did you mean .*sm_90"),
        ({"tag": "nvidia/nvidia-h1000"}, "no tag 'nvidia/nvidia-h1000'. Did you mean .*-h100"),
        ({"tag": "raspberry-pi/4b-aarch64"}, "not an NVIDIA GPU|no tag"),
        ({"tag": "nvidia/nvidia-h100", "arch": "sm_90"}, "both name a GPU"),
        ({"arc": "sm_90"}, "'arc' is not known. Did you mean arch"),
        ({"arch": "sm_90", "threads": "many"}, "threads=many is not a number"),
        ({"arch": "sm_90", "max_threads_per_block": 2048}, "it must be from 1 to 1024"),
        ({"arch": "sm_90", "mcpu": "pentium-9"}, "LLVM has no processor 'pentium-9'"),
    ],
)
def test_invalid_attributes_are_rejected(attrs, message):
    with pytest.raises(UsageError, match=message):
        describe_device(attrs, None)
