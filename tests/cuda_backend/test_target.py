"""Which GPU is meant, and what is said where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from cli.commands import complaint, tvmtune
from tvmtune import system
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.types import Device
from tvmtune_cuda import gpus
from tvmtune_cuda.target import describe_device

RESNET = ("resnet-18", "--shape", "data:1x3x32x32", "--target", "cuda")


@pytest.fixture(autouse=True)
def _compiler(nvcc):
    """All need one."""


def described(**environment: str) -> dict[str, Any]:
    """What is found of the GPUs by a process with these variables."""
    code = "import json; from tvmtune_cuda import gpus; print(json.dumps(gpus.describe()))"
    env = os.environ | environment
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    return json.loads(done.stdout)


def test_an_architecture_is_compiled_for_without_a_gpu():
    device = describe_device({"arch": "sm_90"}, None)
    assert device.absent
    assert device.target["arch"] == "sm_90"
    assert device.target["host"]["kind"] == "llvm"
    assert (device.params["warp_size"], device.params["max_threads_per_block"]) == (32, 1024)
    assert not system.can_run(device)


def test_so_is_one_of_tvms_tags():
    device = describe_device({"tag": "nvidia/nvidia-a100"}, None)
    assert device.target["arch"] == "sm_80"
    assert device.params["l2_cache_bytes"] == 40 << 20
    assert device.model == "nvidia/nvidia-a100"


def test_a_tag_of_a_board_brings_its_processor():
    device = describe_device({"tag": "nvidia/jetson-agx-orin-64gb"}, None)
    assert device.mtriple.startswith("aarch64")


def test_whether_it_is_there_is_no_part_of_the_device():
    """It is the same GPU for the log, and for whoever loads the library where there is one."""
    device = describe_device({"arch": "sm_90"}, None)
    assert not Device.from_json(device.to_json()).absent


def test_the_gpu_at_hand_is_asked(driver, tmp_path):
    done = tvmtune("tasks", *RESNET, "--json", cwd=tmp_path, env=driver(arch=86))
    assert done.returncode == 0, done.stderr
    found = described(**driver(arch=86))
    assert found["driver"] == [13, 0]
    gpu = gpus.check(found)
    assert (gpu["name"], gpu["arch"]) == ("NVIDIA Stand-in", "sm_86")
    assert (gpu["multi_processors"], gpu["l2_cache_bytes"]) == (132, 50 << 20)
    assert gpu["memory_bytes"] == 80 << 30


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"status": 100}, "the driver finds no NVIDIA GPU"),
        ({"count": 0}, "the driver finds no NVIDIA GPU"),
        ({"status": 34}, "stand-in, not a driver's"),
        ({"status": 803}, "of different versions: restart"),
        ({"status": 999}, "the driver cannot be used: CUDA_ERROR_UNKNOWN"),
        ({"version": 12080}, "offers CUDA 12.8, and TVM's runtime needs 13.0: install a newer"),
    ],
)
def test_what_is_wrong_with_a_driver_is_said(driver, told, message):
    with pytest.raises(TvmtuneError, match=message):
        gpus.check(described(**driver(**told)))


def test_without_a_driver_that_is_said_with_what_can_be_done(tmp_path):
    done = tvmtune("tune", *RESNET, cwd=tmp_path)
    assert done.returncode == 1
    said = complaint(done.stderr)
    assert "driver is not installed" in said
    assert "--remote KEY" in said
    assert "--target-attr arch=sm_90" in said


def test_tuning_for_a_gpu_that_is_elsewhere_ends_at_once(tmp_path):
    done = tvmtune("tune", *RESNET, "--target-attr", "arch=sm_90", cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no NVIDIA GPU of sm_90 in this machine to measure on" in complaint(done.stderr)
    assert not list(tmp_path.iterdir())


def test_one_of_another_architecture_is_elsewhere(driver, tmp_path):
    env = driver(arch=80)
    done = tvmtune("tune", *RESNET, "--target-attr", "arch=sm_90", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "to measure on" in complaint(done.stderr)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"arch": "sm_9"}, "arch=sm_9 is no architecture of NVIDIA's"),
        ({"arch": "gfx90a"}, "arch=gfx90a is no architecture of NVIDIA's"),
        ({"arch": "sm_70"}, "arch=sm_70: TVM's runtime needs CUDA 13, for sm_75 and later"),
        ({"arch": "sm_99"}, "arch=sm_99: .* does not compile for it. Did you mean .*sm_90"),
        ({"tag": "nvidia/nvidia-h1000"}, "no tag 'nvidia/nvidia-h1000'. Did you mean .*-h100"),
        ({"tag": "raspberry-pi/4b-aarch64"}, "no GPU of NVIDIA's|no tag"),
        ({"tag": "nvidia/nvidia-h100", "arch": "sm_90"}, "both name a GPU"),
        ({"arc": "sm_90"}, "'arc' is not known. Did you mean arch"),
        ({"arch": "sm_90", "threads": "many"}, "threads=many is not a number"),
        ({"arch": "sm_90", "max_threads_per_block": 2048}, "it has to be from 1 to 1024"),
        ({"arch": "sm_90", "mcpu": "pentium-9"}, "LLVM knows no processor 'pentium-9'"),
    ],
)
def test_a_wrong_attribute_is_refused(attrs, message):
    with pytest.raises(UsageError, match=message):
        describe_device(attrs, None)
