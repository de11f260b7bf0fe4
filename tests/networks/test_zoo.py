"""The zoo: sizes as published, deterministic weights, sound activations."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import numpy as np
import onnx
import pytest

from tvmtune import networks
from tvmtune.errors import UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx_network import OnnxNetwork
from tvmtune.types import Network, TensorSpec

NAMES = networks.names()


@cache
def load(name: str) -> Network:
    return networks.load(name)


def model_of(network: Network) -> onnx.ModelProto:
    content = network.to_onnx()
    assert content is not None
    return onnx.load_model_from_string(content)


@pytest.mark.parametrize(("name", "millions"), [("resnet-18", 11.69), ("mobilenet", 4.23)])
def test_trainable_parameters_are_as_many_as_published(name: str, millions: float):
    weights = model_of(load(name)).graph.initializer
    count = sum(int(np.prod(w.dims)) for w in weights if ".running_" not in w.name)
    assert count / 1e6 == pytest.approx(millions, rel=0.005)


@pytest.mark.parametrize("name", NAMES)
def test_every_network_takes_an_image_and_gives_raw_logits(name: str):
    network = load(name)
    assert network.inputs == (TensorSpec("data", (1, 3, 224, 224), "float32"),)
    assert network.outputs == (TensorSpec("logits", (1, 1000), "float32"),)
    assert network.source == {"zoo": name, "batch": 1}
    operators = [node.op_type for node in model_of(network).graph.node]
    assert "Softmax" not in operators
    assert operators[:3] == ["Conv", "BatchNormalization", "Relu"]


@pytest.mark.parametrize("name", NAMES)
def test_hashes_are_the_same_in_another_process(name: str):
    code = (
        f"from tvmtune.networks import load; n = load({name!r});"
        "print(n.structure_hash, n.weights_hash)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [load(name).structure_hash, load(name).weights_hash]


@pytest.mark.parametrize("name", NAMES)
def test_activations_stay_near_unit_variance_down_to_the_logits(name: str):
    pytest.importorskip("onnxruntime", reason="224x224 takes onnx's evaluator minutes")
    model = model_of(load(name))
    norms = [n.output[0] for n in model.graph.node if n.op_type in ("BatchNormalization", "Add")]
    model.graph.output.extend(onnx.ValueInfoProto(name=norm) for norm in norms)
    network = OnnxNetwork(model, name=name)
    outputs = network.reference(random_inputs(network.inputs, seed=3))
    for spec, array in zip(network.outputs, outputs, strict=True):
        assert 0.3 < array.std() < 3.0, spec
        assert abs(array.mean()) < 2.0, spec


@pytest.mark.parametrize("name", NAMES)
def test_different_inputs_give_clearly_different_logits(name: str):
    pytest.importorskip("onnxruntime", reason="224x224 takes onnx's evaluator minutes")
    network = load(name)
    logits = [network.reference(random_inputs(network.inputs, seed))[0] for seed in (0, 1)]
    assert np.std(logits[0] - logits[1]) > 0.3


def test_a_batch_is_a_batch_of_independent_images():
    small = {"data": (2, 3, 32, 32)}
    pair = networks.load("mobilenet", batch=2, shapes=small)
    single = networks.load("mobilenet", shapes={"data": (1, 3, 32, 32)})
    images = random_inputs(pair.inputs, seed=0)["data"]
    together = pair.reference({"data": images})[0]
    alone = [single.reference({"data": images[i : i + 1]})[0] for i in range(2)]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-4)


def test_batch_and_image_size_change_the_structure_but_no_weight_of_a_layer():
    one, two = (networks.load("mobilenet", batch=batch) for batch in (1, 2))
    assert one.structure_hash != two.structure_hash
    assert one.weights_hash == two.weights_hash


@pytest.mark.parametrize(
    ("shapes", "cause"),
    [
        ({"image": (1, 3, 224, 224)}, "no input 'image'"),
        ({"data": (3, 224, 224)}, "has 3 dimensions"),
        ({"data": (1, 1, 224, 224)}, "dimension 1 is fixed at 3"),
        ({"data": (1, 3, 0, 224)}, "at least 1"),
    ],
)
def test_an_impossible_shape_is_refused(shapes: dict[str, tuple[int, ...]], cause: str):
    with pytest.raises(UsageError, match=cause):
        networks.load("mobilenet", shapes=shapes)
