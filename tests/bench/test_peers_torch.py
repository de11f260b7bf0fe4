"""The PyTorch peers: eager and compiled, with PyTorch programs and converted networks."""

from __future__ import annotations

import psutil
import pytest
from onnx import TensorProto, helper

from models import tiny_cnn, tiny_encoder
from tvmtune import networks
from tvmtune.accuracy import relative_error
from tvmtune.bench import peers
from tvmtune.bench.peers import pnnx_convert, pytorch
from tvmtune.errors import TvmtuneError
from tvmtune.networks.float16 import Float16Network
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork

torch = pytest.importorskip("torch")
COMPILED = ["torch-compile", "torch-max-autotune"]
MODES = ["torch", *(pytest.param(name, marks=pytest.mark.slow) for name in COMPILED)]
converted = pytest.mark.skipif(not pnnx_convert.installed(), reason="pnnx converts the model")


def usable(name: str) -> peers.Peer:
    found = peers.peer(name)
    if found.available() is not None:
        pytest.skip(str(found.available()))
    return found


@pytest.fixture(autouse=True)
def cache(inductor_cache):
    pass


@pytest.fixture
def program(tmp_path):
    """A file with a network of two inputs and two outputs."""

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x, scale):
            y = self.linear(x) * scale
            return torch.relu(y), y.sum(dim=1)

    torch.manual_seed(0)
    exported = torch.export.export(Both().eval(), (torch.randn(2, 4), torch.randn(2, 1)))
    path = tmp_path / "both.pt2"
    torch.export.save(exported, path)
    return path


@pytest.mark.parametrize("name", MODES)
def test_pytorch_programs_run_without_the_converter(name, program, monkeypatch):
    one = usable(name)
    monkeypatch.setattr(pnnx_convert, "PACKAGE", "no_such_converter")
    network = networks.load(str(program))
    one.load(network, 1)
    inputs = random_inputs(network.inputs, 5)
    got = one.run(dict(reversed(inputs.items())))
    assert [array.shape for array in got] == [(2, 3), (2,)]
    for left, right in zip(got, network.reference(inputs), strict=True):
        assert relative_error(left, right) < 1e-5


@converted
@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_is_set(threads):
    before = torch.get_num_threads()
    try:
        peers.peer("torch").load(OnnxNetwork(tiny_cnn(), name="tiny"), threads)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@converted
@pytest.mark.parametrize("name", MODES)
def test_half_precision_networks_run_in_half_precision(name):
    one = usable(name)
    network = Float16Network(OnnxNetwork(tiny_cnn(), name="tiny"))
    one.load(network, 1)
    inputs = random_inputs(network.inputs, 3)
    (got,), (want,) = one.run(inputs), network.reference(inputs)
    assert got.dtype == want.dtype == "float16"
    assert 0 < relative_error(got, want) < 5e-3


def test_a_missing_converter_is_reported_with_a_remedy(monkeypatch):
    monkeypatch.setattr(pnnx_convert, "PACKAGE", "no_such_converter")
    one = peers.peer("torch")
    assert one.available() is None
    with pytest.raises(
        TvmtuneError, match=r"no_such_converter is not installed: .*tvmtune\[torch\]"
    ):
        one.load(OnnxNetwork(tiny_cnn(), name="tiny"), 1)


@converted
def test_an_unconverted_operator_is_named(monkeypatch):
    monkeypatch.setattr(pytorch, "_OPERATORS", {})
    with pytest.raises(TvmtuneError, match="pnnx has no PyTorch form of the model's Gather"):
        peers.peer("torch").load(OnnxNetwork(tiny_encoder(), name="tiny"), 1)


@converted
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_equals_that_of_onnx(axis):
    """Two-dimensional indices, some negative, along each axis."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["data", "indices"], ["y"], axis=axis)],
        "gather",
        [info("data", TensorProto.FLOAT, (10, 11, 12)), info("indices", TensorProto.INT64, (2, 2))],
        [info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = OnnxNetwork(model, name="gather")
    inputs = random_inputs(network.inputs, 0)
    inputs["indices"][:] = [[0, -1], [9, -10]]
    one = peers.peer("torch")
    one.load(network, 1)
    assert (one.run(inputs)[0] == network.reference(inputs)[0]).all()


def test_only_torch_compile_needs_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    reason = peers.peer("torch-compile").available()
    assert reason is not None
    assert "no-such-compiler is not installed" in reason and "apt-get install g++" in reason
    assert peers.peer("torch").available() is None


def test_only_torch_compile_needs_pythons_headers(monkeypatch, tmp_path):
    monkeypatch.setattr(pytorch.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(pytorch.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "apt-get install python3-dev" in str(peers.peer("torch-compile").available())
    (tmp_path / "Python.h").touch()
    assert peers.peer("torch-compile").available() is None


@pytest.mark.slow
@converted
def test_compiling_leaves_no_process():
    from torch._inductor import config

    one = usable("torch-compile")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    one.load(OnnxNetwork(tiny_cnn(), name="tiny"), 1)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    # Where Triton is installed a pool would be started, which this machine may not have.
    assert config.compile_threads == 1


@pytest.mark.slow
@converted
def test_compilation_happens_before_timing():
    from torch._dynamo.utils import counters

    one = usable("torch-compile")
    network = OnnxNetwork(tiny_cnn(), name="tiny")
    counters.clear()
    one.load(network, 1)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 1
    for seed in (1, 2):
        one.run(random_inputs(network.inputs, seed))
    assert counters["stats"]["unique_graphs"] == graphs
