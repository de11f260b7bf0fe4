"""Each network of the zoo computes what the same network written in PyTorch computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tvmtune import networks
from tvmtune.networks.inputs import random_inputs
from tvmtune.types import Network

torch = pytest.importorskip("torch")

from networks.torch_zoo import TORCH_ZOO, with_weights  # noqa: E402

SMALL = {
    "densenet-121": (2, 3, 64, 96),
    "inception_v3": (1, 3, 75, 107),
    "mobilenet": (2, 3, 64, 96),
    "mobilenet-v2": (2, 3, 64, 96),
    "resnet-18": (2, 3, 64, 96),
    "resnet-34": (1, 3, 64, 96),
    "resnet-101": (1, 3, 64, 96),
    "resnet-152": (1, 3, 64, 96),
    "resnet-50": (1, 3, 64, 96),
    "resnet3d-18": (1, 3, 4, 32, 48),
    "resnet3d-34": (1, 3, 4, 32, 48),
    "squeezenet_v1.0": (2, 3, 64, 96),
    "squeezenet_v1.1": (2, 3, 64, 96),
}
"""Shapes of small inputs; the other networks are too large, or take no small images."""


def test_every_network_is_written_in_pytorch_too() -> None:
    assert set(TORCH_ZOO) == set(networks.names())


def check(network: Network) -> None:
    content = network.to_onnx()
    assert content is not None
    module = with_weights(TORCH_ZOO[network.name](), onnx.load_model_from_string(content))
    inputs = random_inputs(network.inputs, seed=0)
    reference = network.reference(inputs)[0]
    with torch.inference_mode():
        found = module(torch.from_numpy(inputs["data"])).numpy()
    assert np.abs(found - reference).max() <= 1e-4 * np.abs(reference).max()


@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.slow
def test_small_inputs_give_the_logits_of_the_same_network_in_pytorch(name: str):
    check(networks.load(name, batch=SMALL[name][0], shapes={"data": SMALL[name]}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        # Small inputs show the same; of the networks that take none, the smallest does.
        pytest.param(name, marks=() if name == "vgg-11" else pytest.mark.soak)
        for name in networks.names()
    ],
)
def test_inputs_of_the_usual_size_give_the_logits_of_the_same_network_in_pytorch(name: str):
    check(networks.load(name))


@pytest.mark.slow
def test_larger_images_are_averaged_down_to_vggs_grid():
    check(networks.load("vgg-11", shapes={"data": (1, 3, 448, 224)}))
