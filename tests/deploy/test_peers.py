"""Other runtimes: found by name, left out with a reason, and right about the network."""

from __future__ import annotations

import os

import numpy as np
import pytest
from tests.models import tiny_cnn, tiny_encoder

from tvmtune.deploy import peers
from tvmtune.deploy.bench import rest
from tvmtune.deploy.verify import relative_error
from tvmtune.errors import UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx_network import OnnxNetwork

NAMES = sorted(peers.PEERS)


def usable(name: str) -> peers.Peer:
    found = peers.peer(name)
    if found.available() is not None:
        pytest.skip(str(found.available()))
    return found


def test_names_are_forgiving_and_unknown_ones_are_not():
    assert peers.peer("ONNXRuntime ").name == "onnxruntime"
    assert peers.peer("ort").name == "onnxruntime"
    with pytest.raises(UsageError, match="no runtime 'onxruntime'.* Did you mean onnxruntime"):
        peers.peer("onxruntime")
    with pytest.raises(UsageError, match="Known: onnxruntime, openvino"):
        peers.peer("zzz")


def test_a_list_of_names():
    assert [one.name for one in peers.parse("ort, openvino,onnxruntime")] == [
        "onnxruntime",
        "openvino",
    ]
    with pytest.raises(UsageError, match="is named"):
        peers.parse(" , ")


def test_a_package_that_is_missing_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(peers.OnnxRuntime, "package", "no_such_runtime")
    one = peers.peer("onnxruntime")
    assert one.available() == "onnxruntime is not installed: pip install no_such_runtime"
    assert one.version == ""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [tiny_cnn, tiny_encoder])
def test_a_peer_computes_what_the_network_computes(name, model):
    one = usable(name)
    network = OnnxNetwork(model(), name="tiny")
    one.load(network.to_onnx(), 1)
    for seed in (0, 1):
        inputs = random_inputs(network.inputs, seed)
        want = network.reference(inputs)
        got = one.run(dict(reversed(inputs.items())))
        assert [array.shape for array in got] == [array.shape for array in want]
        for left, right in zip(got, want, strict=True):
            # bfloat16 would be off by 1e-2
            assert relative_error(left, right) < 1e-5
    assert one.version


@pytest.mark.parametrize("name", NAMES)
def test_timed_calls_compute_too(name):
    one = usable(name)
    network = OnnxNetwork(tiny_cnn(), name="tiny")
    one.load(network.to_onnx(), 1)
    inputs = random_inputs(network.inputs, 0)
    one.set_inputs(inputs)
    assert 0 < one.invoke(3) < 5
    assert relative_error(one.outputs()[0], network.reference(inputs)[0]) < 1e-5
    first = one.outputs()[0]
    one.run(random_inputs(network.inputs, 1))
    assert not np.array_equal(first, one.outputs()[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_peer_starts_as_many_threads_as_it_is_told(name):
    one = usable(name)
    network = OnnxNetwork(tiny_cnn(), name="tiny")
    inputs = random_inputs(network.inputs, 0)
    one.load(network.to_onnx(), 1)
    one.run(inputs)
    rest()  # other tests' threads may still be spinning
    before = os.times()
    spent = one.invoke(200)
    after = os.times()
    used = after.user + after.system - before.user - before.system
    # One thread cannot use more CPU time than time passes; the clock ticks every 10 ms.
    assert used < 1.2 * spent + 0.05
