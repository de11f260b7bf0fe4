"""The builder of the zoo: its values really have the moments that it says they have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from tvmtune.errors import UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value
from tvmtune.networks.zoo.moments import Moments, averaged, clipped
from tvmtune.networks.zoo.windows import Window

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
        lambda g, x: g.conv(g.relu(x), "a", 32, 3, mean=-2.0, variance=3.0),
        lambda g, x: g.conv_plain(g.relu(x), "a", 32, 3, groups=4),
        lambda g, x: g.batch_norm(g.relu(x), "a", mean=1.0, epsilon=1e-3),
        lambda g, x: g.relu6(g.conv_bn(x, "a", 32, 3, mean=3.0, variance=9.0)),
        lambda g, x: g.concat([x, g.relu(x), g.conv_bn(x, "a", 8, 1, mean=2.0)], "both"),
        lambda g, x: g.max_pool(g.concat([g.relu(x), g.relu(g.conv(x, "a", 8, 1))], "all"), "p", 2),
        lambda g, x: g.average_pool(g.relu(x), "pool", 2, stride=2),
    ],
)
def test_values_have_their_stated_moments(layers: Layers):
    value, array = activations(layers)
    assert array.shape == value.shape
    axes = (0, 2, 3)
    np.testing.assert_allclose(array.mean(axes), value.moments.mean, atol=0.3)
    assert array.var(axes).mean() == pytest.approx(value.moments.variance.mean(), rel=0.15)


def test_overlapping_average_pools_keep_the_mean_and_count_padding():
    value, array = activations(
        lambda g, x: g.average_pool(g.conv_bn(x, "a", 64, 1, mean=3.0), "pool", 3, pad=1)
    )
    assert array.shape == value.shape == (2, 64, 24, 24)
    assert array.mean() == pytest.approx(value.moments.mean.mean(), rel=0.01)
    corner, middle = (array[:, :, at, at].mean() for at in (0, 12))
    assert corner == pytest.approx(middle * 4 / 9, rel=0.1)


def test_moments_of_an_average_of_independent_values_with_padding():
    window = Window.of(1, 3, 1, 1)
    x = np.random.RandomState(0).normal(2.0, 1.0, (100_000, 4))
    padded = np.pad(x, ((0, 0), (1, 1)))
    means = (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3
    found = averaged(Moments(np.array([2.0]), np.array([1.0])), 3, window.coverage([4]))
    assert means.mean() == pytest.approx(found.mean[0], rel=0.01)
    assert means.var() == pytest.approx(found.variance[0], rel=0.01)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (3.0, 4.0), (6.0, 2.0), (-2.0, 3.0)])
def test_moments_of_clipped_values(mean: float, deviation: float):
    x = np.random.RandomState(0).normal(mean, deviation, 1_000_000).clip(0, 6)
    found = clipped(Moments(np.array([mean]), np.array([deviation**2])), 6.0)
    assert x.mean() == pytest.approx(found.mean[0], abs=0.01)
    assert x.var() == pytest.approx(found.variance[0], rel=0.01)


@pytest.mark.parametrize(("extent", "positions"), [(13, 6), (14, 7), (12, 6), (3, 1)])
def test_the_last_window_may_extend_beyond_the_end(extent: int, positions: int):
    value, array = activations(
        lambda g, x: g.max_pool(g.relu(x), "pool", 3, stride=2, ceil=True),
        shape=(1, 2, extent, extent),
    )
    assert array.shape == value.shape == (1, 2, positions, positions)


@pytest.mark.parametrize("centered", [True, False])
def test_only_centered_filters_cancel_the_mean_of_their_input(centered: bool):
    g = GraphBuilder("test", centered=centered)
    x = g.relu(g.conv_bn(g.input("data", (1, 8, 9, 9)), "before", 64, 3))
    model = g.model(g.conv_plain(x, "conv", 64, 3))
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}
    passed = np.einsum("oihw,i->o", weights["conv.weight"], x.moments.mean)
    assert (np.abs(passed).max() < 1e-5) == centered


def test_3d_layers_work_like_2d_layers():
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
        g = GraphBuilder("test", centered=False)
        x = g.input("data", (1, 4, 8, 8))
        for name in names:
            x = g.conv_bn(x, name, 4, 3, pad=1)
        return next(w for w in g.model(x).graph.initializer if w.name == "last.weight")

    assert weight_of_last("last") == weight_of_last("first", "second", "last")


def test_an_input_that_is_too_small_is_refused_with_the_layer():
    with pytest.raises(UsageError, match="only 2x2 is left of it at layer 'big'"):
        activations(lambda g, x: g.conv(x, "big", 8, 5), shape=(1, 3, 2, 2))
