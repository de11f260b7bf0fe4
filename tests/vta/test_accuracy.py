"""int8 accuracy on a real task: handwritten digits held out from training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from digits import HELD_OUT, exported, load, trained
from tvmtune import api, networks
from tvmtune.runtime.library import Library

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    return load()


@pytest.fixture(scope="module")
def model(digits):
    return trained(digits)


def test_int8_accuracy_is_within_a_point_of_float_on_held_out_digits(digits, model, tmp_path):
    pictures, shown = digits
    path = tmp_path / "digits.pt2"
    network = networks.load(exported(model, digits, path))
    (spec,) = network.inputs
    samples = {spec.name: pictures[HELD_OUT : HELD_OUT + 64]}
    plan = api.plan(network, "vta", calibration=samples)
    assert len(plan.prepared.extra["partition"].layers) == 7
    library = Library.open(api.compile(plan, tmp_path / "digits.so").path)
    predicted = [
        int(library.run({spec.name: pictures[n : n + 1]})[0].argmax()) for n in range(HELD_OUT)
    ]
    with torch.no_grad():
        wanted = model(torch.from_numpy(pictures[:HELD_OUT])).argmax(1).numpy()
    float_right = float(np.mean(wanted == shown[:HELD_OUT]))
    int8_right = float(np.mean(np.array(predicted) == shown[:HELD_OUT]))
    assert float_right > 0.95
    assert int8_right >= float_right - 0.01, (int8_right, float_right)
    assert all(row.sqnr > 25 for row in plan.network.table())
