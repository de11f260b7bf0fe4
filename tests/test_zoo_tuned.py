"""Tune, compile and check networks of several families. The soak tests cover a network of each."""

from __future__ import annotations

import re

import pytest

from cli.commands import tvmtune
from tvmtune.networks import names
from tvmtune.networks.zoo import ZOO

TRIALS = 10
SAMPLE = {
    "bert": ("bert-base", "input_ids:1x16"),
    "convnext": ("convnext-tiny", "data:1x3x64x64"),
    "densenet": ("densenet-121", "data:1x3x64x64"),
    "efficientnet": ("efficientnet-b0", "data:1x3x64x64"),
    "gpt2": ("gpt2", "input_ids:1x16"),
    "inception": ("inception_v3", "data:1x3x75x75"),
    "mobilenet": ("mobilenet", "data:1x3x96x96"),
    "mobilenet_v2": ("mobilenet-v2", "data:1x3x64x64"),
    "mobilenet_v3": ("mobilenet-v3-small", "data:1x3x64x64"),
    "resnet": ("resnet-18", "data:1x3x64x64"),
    "resnet3d": ("resnet3d-18", "data:1x3x4x32x32"),
    "squeezenet": ("squeezenet_v1.1", "data:1x3x64x64"),
    "vgg": ("vgg-11", None),
    "vit": ("vit-b-16", "data:1x3x64x64"),
}
"""A network of each family, with smaller inputs if the default size takes minutes."""

QUICKER = {"mobilenet_v3"}
"""What stands for the others in CI: depthwise convolutions with gates. The examples of the docs
(tests/docs) tune resnet-18 there, the tests of boards mobilenet, tests/cli/test_encoder.py attention.
3D convolutions are in tests/operators/test_cpu_gemm.py, concatenations in tests/spaces."""


def samples() -> list[object]:
    return [
        pytest.param(*sample, id=family, marks=() if family in QUICKER else pytest.mark.soak)
        for family, sample in SAMPLE.items()
    ]


def test_there_is_a_sample_of_each_family():
    assert {ZOO[name].family for name in names()} == set(SAMPLE)
    assert [ZOO[name].family for name, _ in SAMPLE.values()] == list(SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), samples())
def test_a_network_of_each_family_is_tuned_compiled_and_correct(name, shape, tmp_path):
    network = [name, "--shape", shape] if shape else [name]
    # In three steps: ``tune`` alone would compile the untuned library, too.
    few = ["--repeat", 3]  # only correctness matters, not speed
    words = ["tune", *network, "--tasks", "top4", "--trials", TRIALS, *few]
    done = tvmtune(*words, "--log", "log.json", "--no-compile", cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr
    assert f"{TRIALS} trials in" in done.stderr
    done = tvmtune("compile", *network, "--log", "log.json", "-o", "lib.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^lib.so: .* \d+ tasks: 4 with a record", done.stdout, re.M), done.stdout
    done = tvmtune("bench", "lib.so", "--check", *few, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^the output is right \(.* = [\d.e-]+, at most 1e-04", done.stdout, re.M)
