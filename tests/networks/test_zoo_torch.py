"""Each network of the zoo computes what the same network written in PyTorch computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tvmtune import networks
from tvmtune.networks.inputs import inputs_of
from tvmtune.networks.zoo import ZOO
from tvmtune.types import Network

torch = pytest.importorskip("torch")

from networks.torch_zoo import TORCH_ZOO, with_weights  # noqa: E402
from networks.torch_zoo_mobile import TORCH_MOBILE  # noqa: E402
from networks.torch_zoo_transformers import TORCH_TRANSFORMERS  # noqa: E402

MODULES = TORCH_ZOO | TORCH_MOBILE | TORCH_TRANSFORMERS

SMALL = {
    "bert-base": (2, 12),
    "convnext-tiny": (2, 3, 64, 96),
    "densenet-121": (2, 3, 64, 96),
    "efficientnet-b0": (2, 3, 64, 96),
    "gpt2": (2, 10),
    "inception_v3": (1, 3, 75, 107),
    "mobilenet": (2, 3, 64, 96),
    "mobilenet-v2": (2, 3, 64, 96),
    "mobilenet-v3-large": (2, 3, 64, 96),
    "mobilenet-v3-small": (2, 3, 64, 96),
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
"""Shapes of small inputs. The other networks are too large, take no small images, or have fewer
weights for them."""


LARGER = ("resnet-101", "resnet-152", "resnet3d-34")


def test_every_network_is_written_in_pytorch_too() -> None:
    assert set(MODULES) == set(networks.names())


def check(network: Network) -> None:
    content = network.to_onnx()
    assert content is not None
    module = with_weights(MODULES[network.name](), onnx.load_model_from_string(content))
    inputs = inputs_of(network)
    with torch.inference_mode():
        found = module(*(torch.from_numpy(inputs[spec.name]) for spec in network.inputs))
    outputs = found if isinstance(found, tuple) else (found,)
    for y, reference in zip(outputs, network.reference(inputs), strict=True):
        assert np.abs(y.numpy() - reference).max() <= 1e-4 * np.abs(reference).max()


@pytest.mark.parametrize(
    "name",
    [
        # Built by the same code as the smaller ones of their families.
        pytest.param(name, marks=pytest.mark.soak if name in LARGER else ())
        for name in sorted(SMALL)
    ],
)
@pytest.mark.slow
def test_small_inputs_give_the_logits_of_the_same_network_in_pytorch(name: str):
    shapes = {ZOO[name].inputs[0]: SMALL[name]}
    check(networks.load(name, batch=SMALL[name][0], shapes=shapes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        # Small inputs show the same. Vision transformers take none, and VGG is tested with larger ones.
        pytest.param(name, marks=() if name == "vit-b-16" else pytest.mark.soak)
        for name in networks.names()
    ],
)
def test_inputs_of_the_usual_size_give_the_logits_of_the_same_network_in_pytorch(name: str):
    check(networks.load(name))


@pytest.mark.soak
def test_larger_images_are_averaged_down_to_vggs_grid():
    check(networks.load("vgg-11", shapes={"data": (1, 3, 448, 224)}))
