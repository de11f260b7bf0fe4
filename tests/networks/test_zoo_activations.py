"""Weights of the zoo keep activations sound: neither vanishing, nor growing, nor blind to inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from tvmtune import networks
from tvmtune.networks.inputs import inputs_of
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.types import Network

pytest.importorskip("onnxruntime", reason="224x224 takes onnx's evaluator minutes")

QUICK = ["mobilenet", "mobilenet-v2", "mobilenet-v3-small", "squeezenet_v1.1"]
SLOW = [
    "convnext-tiny",
    "densenet-121",
    "efficientnet-b0",
    "gpt2",
    "inception_v3",
    "mobilenet-v3-large",
    "resnet-18",
    "resnet-50",
    "resnet3d-18",
    "vit-b-16",
]
"""With the quick ones, a network of each kind of layer; vgg-11 and bert-base, whose layers others have,
take the longest."""


def marks(name: str) -> pytest.MarkDecorator | tuple[()]:
    if name in QUICK:
        return ()
    return pytest.mark.slow if name in SLOW else pytest.mark.soak


PASSED_ON = ("Relu", "Clip", "HardSwish", "Add", "Concat", "LayerNormalization")
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
    known = {output.name for output in model.graph.output}
    for node in model.graph.node:
        # SqueezeNet averages its last activations to logits: these alone are large. Masks make scores
        # infinite, and gates are made of small values.
        exempt = node.name.endswith(("classifier.relu", ".masked")) or ".se." in node.name
        passed_on = node.op_type in PASSED_ON or node.name.endswith(".silu")
        if passed_on and not exempt and node.output[0] not in known:
            model.graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
    inner = OnnxNetwork(model, name=network.name)
    outputs = inner.reference(inputs_of(inner, 3))
    assert len(outputs) > 10
    for spec, array in zip(inner.outputs, outputs, strict=True):
        if spec.name in known:
            continue
        assert 0.3 < array.std() < 3.0, spec
        assert abs(array.mean()) < 2.5, spec


def test_different_inputs_give_clearly_different_logits(network: Network):
    logits = [network.reference(inputs_of(network, seed))[0] for seed in (0, 1)]
    assert np.std(logits[0] - logits[1]) > 0.3
    if logits[0].ndim == 3:  # of each token
        assert logits[0].std(axis=1).mean() > 0.5 * logits[0].std()
