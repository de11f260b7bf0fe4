"""int8 accuracy on a real task: handwritten digits held out from training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import datasets

from tvmtune import api, networks
from tvmtune.runtime.library import Library

pytestmark = pytest.mark.slow

HELD_OUT = 400
EPOCHS = 12


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 8, 8), of about unit variance, and their labels."""
    data = datasets.load_digits()
    pictures = ((data.images - data.images.mean()) / data.images.std()).astype("float32")[:, None]
    order = np.random.default_rng(0).permutation(len(pictures))
    return pictures[order], data.target[order]


@pytest.fixture(scope="module")
def model(digits):
    """A small residual network, trained on all but the held-out ones."""
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm = torch.nn.BatchNorm2d(channels)
            self.second = torch.nn.Conv2d(channels, channels, 3, padding=1)

        def forward(self, x):
            return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))

    network = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), Block(16)),
        *(torch.nn.Conv2d(16, 32, 3, stride=2, padding=1), torch.nn.ReLU(), Block(32)),
        *(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10)),
    )
    pictures, shown = (torch.from_numpy(a[HELD_OUT:]) for a in digits)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    # Without a decay, the last steps decide: the rounding of another number of threads was enough.
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(pictures)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(pictures[batch]), shown[batch]).backward()
            optimizer.step()
        decay.step()
    return network.eval()


def test_int8_accuracy_is_within_a_point_of_float_on_held_out_digits(digits, model, tmp_path):
    pictures, shown = digits
    path = tmp_path / "digits.pt2"
    torch.export.save(torch.export.export(model, (torch.from_numpy(pictures[:1]),)), path)
    network = networks.load(str(path))
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
