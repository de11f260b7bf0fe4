"""Tune, compile and check a network of each family. The soak script covers all, at full size."""

from __future__ import annotations

import re

import pytest

from cli.commands import tvmtune
from tvmtune.networks import names
from tvmtune.networks.zoo import ZOO

TRIALS = 16
SAMPLE = {
    "densenet": ("densenet-121", "1x3x64x64"),
    "inception": ("inception_v3", "1x3x75x75"),
    "mobilenet": ("mobilenet", "1x3x96x96"),
    "mobilenet_v2": ("mobilenet-v2", "1x3x64x64"),
    "resnet": ("resnet-18", "1x3x64x64"),
    "resnet3d": ("resnet3d-18", "1x3x4x32x32"),
    "squeezenet": ("squeezenet_v1.1", "1x3x96x96"),
    "vgg": ("vgg-11", None),
}
"""A network of each family, with smaller images if the default size takes minutes."""


def test_there_is_a_sample_of_each_family():
    assert {ZOO[name].family for name in names()} == set(SAMPLE)
    assert [ZOO[name].family for name, _ in SAMPLE.values()] == list(SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), SAMPLE.values(), ids=SAMPLE)
def test_a_network_of_each_family_is_tuned_compiled_and_correct(name, shape, tmp_path):
    network = [name, "--shape", f"data:{shape}"] if shape else [name]
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
