"""A real task: handwritten digits, and a network that was trained on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn import datasets

HELD_OUT = 400
EPOCHS = 12


def load() -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 8, 8), of about unit variance, and their labels."""
    data = datasets.load_digits()
    pictures = ((data.images - data.images.mean()) / data.images.std()).astype("float32")[:, None]
    order = np.random.default_rng(0).permutation(len(pictures))
    return pictures[order], data.target[order]


def trained(digits: tuple[np.ndarray, np.ndarray]) -> torch.nn.Module:
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


def exported(model: torch.nn.Module, digits: tuple[np.ndarray, np.ndarray], path: Path) -> Path:
    """As a ``.pt2`` file for one image."""
    torch.export.save(torch.export.export(model, (torch.from_numpy(digits[0][:1]),)), path)
    return path
