"""Networks that other tools quantized, on processors with different instructions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from onnxruntime.quantization import QuantType

import tvmtune
from quantize import cnn
from quantize.quantized_onnx import quantized
from remote import emulated
from tvmtune import api
from tvmtune.machine import cpu_features
from tvmtune.networks.inputs import random_inputs
from tvmtune.operators import cpu_pipeline
from tvmtune.runtime.library import Library
from tvmtune.tasks.plan import Plan

SIGNED, UNSIGNED = QuantType.QInt8, QuantType.QUInt8


def plan_for(backend: str, processor: str, path: Path) -> Plan:
    return api.plan(tvmtune.load(path), backend, attrs={"mcpu": processor})


def assembly(plan: Plan) -> str:
    """Of the kernel with the most computation, by its default schedule."""
    direct = max(plan.tasks, key=lambda task: task.flop).implementations[0]
    target = tvm.target.Target(plan.device.target)
    pipeline = cpu_pipeline.pipeline_for(plan.device.target)
    sch = direct.space.default(direct.mod, target)
    return str(tvm.compile(sch.mod, target, tir_pipeline=pipeline).mod.inspect_source("asm"))


@pytest.mark.slow
@pytest.mark.parametrize("activations", [SIGNED, UNSIGNED], ids=["int8", "uint8"])
@pytest.mark.parametrize(
    ("backend", "processor", "instruction", "register"),
    [
        ("cpu", "cascadelake", "vpdpbusd", "%zmm"),
        ("cpu", "alderlake", "vpdpbusd", "%ymm"),
        ("cpu", "sierraforest", "vpdpbusd", "%ymm"),
        ("cpu", "skylake-avx512", "vpmaddwd", "%zmm"),
        ("cpu", "haswell", "vpmaddwd", "%ymm"),
        ("arm", "neoverse-v1", "usdot", "v"),
        ("arm", "cortex-a76", "sdot", "v"),
    ],
)
def test_each_processor_multiplies_with_its_own_instruction(
    backend, processor, instruction, register, activations, tmp_path
):
    """Read from the generated code, so that this machine need not have it."""
    path = quantized(cnn.residual(32), tmp_path, activation_type=activations, per_channel=True)
    plan = plan_for(backend, processor, path)
    products = [task.name for task in plan.tasks if "conv2d" in task.name or "matmul" in task.name]
    assert products
    assert all("quantized" in name for name in products)
    lines = [line for line in assembly(plan).splitlines() if f"\t{instruction}\t" in line]
    assert len(lines) >= 4
    assert all(register in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "processor"), [("cpu", "x86-64-v2"), ("arm", "cortex-a72")])
def test_processors_on_which_integers_gain_nothing_compute_in_float(backend, processor, tmp_path):
    path = quantized(cnn.residual(32), tmp_path, activation_type=UNSIGNED, per_channel=True)
    plan = plan_for(backend, processor, path)
    assert not any("quantized" in task.name for task in plan.tasks)


NETWORKS = {
    "residual": (cnn.residual(32), {"activation_type": UNSIGNED, "per_channel": True}),
    "mixed": (cnn.mixed(), {"activation_type": UNSIGNED}),
    "signed": (cnn.mixed(), {"activation_type": SIGNED, "per_channel": True}),
}
BOARDS = {"cortex-a76": "cortex-a76", "neoverse-v1": "max"}
"""Processors, and what is emulated for their code."""


WIDE = (cnn.residual(32), {"activation_type": UNSIGNED, "weight_type": UNSIGNED})
"""Without their zero points, weights do not fit in bytes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "options"), [*NETWORKS.values(), WIDE], ids=[*NETWORKS, "wide"]
)
def test_all_processors_compute_the_same_bits(network, options, tmp_path):
    path = quantized(network, tmp_path, **{"weight_type": SIGNED, **options})
    outputs = {}
    for processor in ("cascadelake", "skylake-avx512", "alderlake", "haswell"):
        plan = plan_for("cpu", processor, path)
        if cpu_features.can_run(plan.device.target, ""):
            library = Library.open(api.compile(plan, tmp_path / f"{processor}.so").path)
            outputs[processor] = [
                each for seed in (1, 2) for each in library.run(random_inputs(library.inputs, seed))
            ]
    if len(outputs) < 2:
        pytest.skip("this machine runs the code of fewer than two of them")
    first, *others = outputs.values()
    assert all(np.ptp(each) > 0 for each in first)
    for other in others:
        for one, each in zip(first, other, strict=True):
            np.testing.assert_array_equal(one, each)


def on_boards() -> list[object]:
    """Each network on each board; in CI each network on one of them."""
    ci = ("residual-neoverse-v1", "mixed-cortex-a76", "signed-neoverse-v1")
    cases = []
    for name, network in NETWORKS.items():
        for processor, emulator in BOARDS.items():
            case = f"{name}-{processor}"
            mark = pytest.mark.slow if case in ci else pytest.mark.soak
            cases.append(pytest.param(*network, processor, emulator, id=case, marks=mark))
    return cases


@emulated.needed
@pytest.mark.parametrize(("network", "options", "processor", "emulator"), on_boards())
def test_a_board_computes_the_same_bits(network, options, processor, emulator, tmp_path):
    path = quantized(network, tmp_path, weight_type=SIGNED, **options)
    here = Library.open(api.compile(api.plan(tvmtune.load(path), "cpu"), tmp_path / "here.so").path)
    there = api.compile(plan_for("arm", processor, path), tmp_path / "there.so").path
    inputs = random_inputs(here.inputs, 1)
    outputs = emulated.outputs(there, inputs, emulator)
    for one, other in zip(here.run(inputs), outputs, strict=True):
        np.testing.assert_array_equal(one, other)
