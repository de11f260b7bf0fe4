"""A network of each family: tuned, compiled, checked. The soak script takes all of them, full-size."""

from __future__ import annotations

import json
import re

import pytest

from cli.commands import tvmtune
from tvmtune.networks import names
from tvmtune.networks.zoo import ZOO

TRIALS = 64
SAMPLE = {
    "densenet": ("densenet-121", "1x3x96x96"),
    "inception": ("inception_v3", "1x3x139x139"),
    "mobilenet": ("mobilenet", None),
    "mobilenet_v2": ("mobilenet-v2", "1x3x96x96"),
    "resnet": ("resnet-18", None),
    "resnet3d": ("resnet3d-18", "1x3x8x56x56"),
    "squeezenet": ("squeezenet_v1.1", "1x3x96x96"),
    "vgg": ("vgg-11", None),
}
"""A network of each family, and the size of its pictures where the usual one takes minutes."""


def test_there_is_a_sample_of_each_family():
    assert {ZOO[name].family for name in names()} == set(SAMPLE)
    assert [ZOO[name].family for name, _ in SAMPLE.values()] == list(SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), SAMPLE.values(), ids=SAMPLE)
def test_a_network_of_each_family_is_tuned_compiled_and_right(name, shape, tmp_path):
    network = [name, "--shape", f"data:{shape}"] if shape else [name]
    done = tvmtune("tasks", *network, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tasks = json.loads(done.stdout)["tasks"]
    assert all(t["weight"] >= 1 and t["args"] for t in tasks)
    few = ["--repeat", 3]  # whether it is right is the question, and not how quick
    words = ["tune", *network, "--trials", TRIALS, *few, "-o", "lib.so"]
    done = tvmtune(*words, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^the output is right \(.* = [\d.e-]+, at most 1e-04", done.stdout, re.M)
    assert f"{TRIALS} trials in" in done.stderr
    assert re.search(rf"^lib.so: .* {len(tasks)} tasks: ", done.stdout, re.MULTILINE)
