"""Weights of the zoo keep activations sound: neither vanishing, nor growing, nor blind to inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from tvmtune import networks
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.types import Network

pytest.importorskip("onnxruntime", reason="224x224 takes onnx's evaluator minutes")

QUICK = ["mobilenet", "mobilenet-v2", "squeezenet_v1.1"]
SLOW = ["densenet-121", "inception_v3", "resnet-18", "resnet-50", "resnet3d-18", "vgg-11"]
"""With the quick ones, a network of each kind of layer in each family."""


def marks(name: str) -> pytest.MarkDecorator | tuple[()]:
    if name in QUICK:
        return ()
    return pytest.mark.slow if name in SLOW else pytest.mark.soak


PASSED_ON = ("Relu", "Clip", "Add", "Concat")
"""Operators whose results are what later layers see."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=marks(name)) for name in networks.names()],
)
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    yield networks.load(request.param)


def test_activations_stay_near_unit_variance_down_to_the_logits(network: Network):
    content = network.to_onnx()
    assert content is not None
    model = onnx.load_model_from_string(content)
    for node in model.graph.node:
        # SqueezeNet averages its last activations to logits: these alone are large.
        if node.op_type in PASSED_ON and node.name != "classifier.relu":
            model.graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
    inner = OnnxNetwork(model, name=network.name)
    outputs = inner.reference(random_inputs(inner.inputs, seed=3))
    assert len(outputs) > 10
    for spec, array in zip(inner.outputs, outputs, strict=True):
        assert 0.3 < array.std() < 3.0, spec
        assert abs(array.mean()) < 2.5, spec


def test_different_inputs_give_clearly_different_logits(network: Network):
    logits = [network.reference(random_inputs(network.inputs, seed))[0] for seed in (0, 1)]
    assert np.std(logits[0] - logits[1]) > 0.3
