"""int8 accuracy on a real task: handwritten digits held out from training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from digits import HELD_OUT, exported, load, trained
from tvmtune import networks
from tvmtune.networks.quantization import METHODS, Calibration

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    return load()


@pytest.fixture(scope="module")
def model(digits):
    return trained(digits)


@pytest.mark.parametrize("method", METHODS)
def test_int8_recognizes_as_many_digits_as_float(method, digits, model, tmp_path):
    """By the quantized form's reference, which libraries are checked against."""
    pictures, shown = digits
    path = exported(model, digits, tmp_path / "digits.pt2")
    network = networks.load(path, dtype="int8", calibration=Calibration(method))
    (spec,) = network.inputs
    samples = [{spec.name: picture[None]} for picture in pictures[HELD_OUT : HELD_OUT + 64]]
    quantized = network.calibrated(samples)
    assert quantized.source["quantization"]["skipped"] == []
    runs = quantized._quantized.references({spec.name: each[None]} for each in pictures[:HELD_OUT])
    got = np.array([scores.argmax() for (scores,) in runs])
    with torch.no_grad():
        float_ = model(torch.from_numpy(pictures[:HELD_OUT])).argmax(1).numpy()
    correct, wanted = (np.mean(each == shown[:HELD_OUT]) for each in (got, float_))
    assert wanted > 0.95
    assert correct >= wanted - 0.01
    assert np.mean(got == float_) >= 0.99
