"""The builder of the zoo: its values really have the moments that it says they have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from tvmtune.errors import UsageError
from tvmtune.networks.graph_builder import GraphBuilder, Value
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx_network import OnnxNetwork

Layers = Callable[[GraphBuilder, Value], Value]


def activations(layers: Layers, *, shape: tuple[int, ...] = (2, 16, 24, 24)):
    g = GraphBuilder("test")
    value = layers(g, g.input("data", shape))
    network = OnnxNetwork(g.model(value), name="test")
    return value, network.reference(random_inputs(network.inputs, seed=0))[0]


@pytest.mark.parametrize(
    "layers",
    [
        lambda g, x: g.conv(x, "a", 32, 3, pad=1),
        lambda g, x: g.conv(g.relu(g.conv(x, "a", 32, 3)), "b", 16, 1, stride=2),
        lambda g, x: g.relu(g.conv_bn(x, "a", 32, 3, groups=16)),
        lambda g, x: g.max_pool(g.relu(x), "pool", 3, stride=2),
        lambda g, x: g.conv_bn(g.max_pool(g.relu(x), "pool", 2, stride=2), "a", 8, 3, mean=-1.0),
        lambda g, x: g.add(g.relu(x), g.conv_bn(x, "a", 16, 1, variance=0.5), "sum"),
    ],
)
def test_a_value_has_the_moments_that_it_claims(layers: Layers):
    value, array = activations(layers)
    assert array.shape == value.shape
    axes = (0, 2, 3)
    np.testing.assert_allclose(array.mean(axes), value.moments.mean, atol=0.3)
    assert array.var(axes).mean() == pytest.approx(value.moments.variance.mean(), rel=0.15)


def test_three_extents_work_like_two():
    value, array = activations(
        lambda g, x: g.max_pool(g.relu(g.conv_bn(x, "a", 8, (3, 1, 1), pad=(1, 0, 0))), "p", 2),
        shape=(1, 4, 6, 8, 10),
    )
    assert array.shape == value.shape == (1, 8, 5, 7, 9)


def test_the_classifier_gives_standard_normal_logits():
    _, logits = activations(
        lambda g, x: g.dense(g.global_average_pool(g.relu(x), "pool"), "fc", 500),
        shape=(4, 64, 9, 9),
    )
    assert 0.3 < logits.std() < 1.5


def test_a_weight_does_not_depend_on_the_layers_before_it():
    def weight_of_last(*names: str) -> onnx.TensorProto:
        g = GraphBuilder("test")
        x = g.input("data", (1, 4, 8, 8))
        for name in names:
            x = g.conv_bn(x, name, 4, 3, pad=1)
        return next(w for w in g.model(x).graph.initializer if w.name == "last.weight")

    assert weight_of_last("last") == weight_of_last("first", "second", "last")


def test_an_input_that_is_too_small_is_refused_with_the_layer():
    with pytest.raises(UsageError, match="only 2x2 is left of it at layer 'big'"):
        activations(lambda g, x: g.conv(x, "big", 8, 5), shape=(1, 3, 2, 2))
