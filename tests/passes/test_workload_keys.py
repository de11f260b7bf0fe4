"""Workload keys: equal in every process, and different for different workloads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from models import tiny_cnn
from tvmtune import api
from tvmtune.networks.zoo.graph_builder import GraphBuilder


def tasks_in_a_process(model: Path, hash_seed: int) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tvmtune.cli", "tasks", "--network", str(model), "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    tasks: list[dict[str, Any]] = json.loads(done.stdout)["tasks"]
    return tasks


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


@pytest.mark.slow
def test_keys_are_equal_in_two_processes(tmp_path):
    model = saved(tiny_cnn(), tmp_path / "net.onnx")
    first, second = (tasks_in_a_process(model, seed) for seed in (1, 2))
    assert first == second
    keys = [i["workload_key"] for t in first for i in t["implementations"]]
    assert len(set(keys)) == len(keys)


@pytest.mark.slow
def test_keys_depend_on_shapes_and_not_on_weights(tmp_path):
    def keys(name: str, **arguments: int) -> tuple[set[str], set[str]]:
        network = api.load(str(saved(tiny_cnn(**arguments), tmp_path / name)))
        tasks = api.plan(network).tasks
        return {t.key for t in tasks}, {t.anchor_key for t in tasks}

    plain, anchors = keys("plain.onnx")
    assert keys("weights.onnx", seed=5) == (plain, anchors)
    for name, arguments in (("size.onnx", {"size": 64}), ("batch.onnx", {"batch": 2})):
        others, other_anchors = keys(name, **arguments)
        convolutions = {t for t in plain if t in others}
        assert len(convolutions) < len(plain) / 2
        assert other_anchors != anchors


def one_convolution(*, residual: bool, channels: int = 16, kernel: int = 3) -> onnx.ModelProto:
    """A convolution and a ReLU, with an addition of the input in between if ``residual``."""
    g = GraphBuilder("one", seed=0)
    data = g.input("data", (1, channels, 8, 8))
    x = g.conv_bn(data, "conv", channels, kernel, pad=kernel // 2)
    x = g.relu(g.add(x, data, "sum") if residual else x)
    return g.model(g.dense(g.global_average_pool(x, "average"), "fc", 4, output="logits"))


def convolution(tmp_path: Path, **arguments: Any) -> Any:
    path = saved(one_convolution(**arguments), tmp_path / "one.onnx")
    (task,) = [t for t in api.plan(api.load(str(path))).tasks if "conv2d" in t.name]
    return task


def test_the_anchor_key_is_independent_of_fusion(tmp_path):
    plain = convolution(tmp_path, residual=False)
    residual = convolution(tmp_path, residual=True)
    assert plain.key != residual.key
    assert plain.anchor_key == residual.anchor_key


@pytest.mark.parametrize("other", [{"channels": 32}, {"kernel": 1}])
def test_different_convolutions_have_different_anchor_keys(tmp_path, other):
    plain = convolution(tmp_path, residual=False)
    assert convolution(tmp_path, residual=False, **other).anchor_key != plain.anchor_key
