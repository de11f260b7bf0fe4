"""Peers: found by name, skipped with a reason, and correct."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from models import tiny_cnn, tiny_encoder
from tvmtune import networks
from tvmtune.bench import peers
from tvmtune.bench.peers.onnx_runtime import OnnxRuntime
from tvmtune.bench.verify import relative_error
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.runtime.timing import rest

SLOW = {"torch-compile", "torch-max-autotune"}
ONNX = [name for name in peers.PEERS if name != "litert"]
"""Those that read the ONNX form."""
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in ONNX]


def usable(name: str) -> peers.Peer:
    found = peers.peer(name)
    if found.available() is not None:
        pytest.skip(str(found.available()))
    return found


def tiny(model=tiny_cnn, *arguments):
    return OnnxNetwork(model(*arguments), name="tiny")


@pytest.fixture(autouse=True)
def places(inductor_cache, tmp_path, monkeypatch):
    """A temporary working directory."""
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    return tmp_path


def test_names_ignore_case_and_unknown_ones_are_errors():
    assert peers.peer("ONNXRuntime ").name == "onnxruntime"
    assert peers.peer("ort").name == "onnxruntime"
    assert peers.peer("ov").name == "openvino"
    for alias in ("torch_compile", "Torch-Compiled", "torch_compiled", "inductor"):
        assert peers.peer(alias).name == "torch-compile"
    with pytest.raises(UsageError, match="no runtime 'onxruntime'.* Did you mean onnxruntime"):
        peers.peer("onxruntime")
    with pytest.raises(UsageError, match="Did you mean torch"):
        peers.peer("trch")
    with pytest.raises(UsageError, match=f"Known: {', '.join(sorted([*peers.PEERS, peers.ALL]))}"):
        peers.peer("zzz")


def test_lists_of_names_are_parsed():
    assert [one.name for one in peers.parse("ort, openvino,onnxruntime,pytorch")] == [
        "onnxruntime",
        "openvino",
        "torch",
    ]
    with pytest.raises(UsageError, match="name a runtime"):
        peers.parse(" , ")


def test_all_means_the_installed_peers(monkeypatch):
    for name, cls in peers.PEERS.items():
        reason = None if name in ("onnxruntime", "ncnn") else f"{name} is not installed"
        monkeypatch.setattr(cls, "available", lambda self, reason=reason: reason)
    assert [one.name for one in peers.parse("All")] == ["onnxruntime", "ncnn"]
    # A peer that is named is kept even if it is not installed.
    assert [one.name for one in peers.parse("torch,all,ort")] == ["torch", "onnxruntime", "ncnn"]
    for cls in peers.PEERS.values():
        monkeypatch.setattr(cls, "available", lambda self: f"{self.name} is not installed")
    with pytest.raises(
        UsageError, match="no runtime to compare with: onnxruntime is not inst.*ncnn"
    ):
        peers.parse("all")


def test_a_missing_package_is_reported_with_a_remedy(monkeypatch):
    monkeypatch.setattr(OnnxRuntime, "package", "no_such_runtime")
    one = peers.peer("onnxruntime")
    assert one.available() == "onnxruntime is not installed: pip install no_such_runtime"
    assert one.version == ""


def test_the_registry_imports_no_runtime():
    packages = {cls.package for cls in peers.PEERS.values()} | {"pnnx", "tvm", "onnx"}
    code = (
        "import sys\nfrom tvmtune.bench import peers\n"
        "for cls in peers.PEERS.values(): cls().available(); cls().version\n"
        f"print(sorted({packages!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def outputs_of() -> list[object]:
    """Each peer with each model; in CI PyTorch's slowest mode with one model only."""
    cases = []
    for model in (tiny_cnn, tiny_encoder):
        for name in ONNX:
            mark = [pytest.mark.slow] if name in SLOW else []
            if (name, model) == ("torch-max-autotune", tiny_encoder):
                mark = [pytest.mark.soak]
            cases.append(pytest.param(model, name, id=f"{model.__name__}-{name}", marks=mark))
    return cases


@pytest.mark.sweep
@pytest.mark.parametrize(("model", "name"), outputs_of())
def test_outputs_equal_those_of_the_network(name, model):
    one = usable(name)
    network = tiny(model)
    if (name, model) == ("ncnn", tiny_encoder):
        with pytest.raises(TvmtuneError, match="ncnn has no operator Gather"):
            one.load(network, 1)
        return
    one.load(network, 1)
    for seed in (0, 1):
        inputs = random_inputs(network.inputs, seed)
        want = network.reference(inputs)
        got = one.run(dict(reversed(inputs.items())))
        assert [array.shape for array in got] == [array.shape for array in want]
        for left, right in zip(got, want, strict=True):
            assert left.dtype == right.dtype
            # bfloat16 would be off by 1e-2
            assert relative_error(left, right) < 1e-5
    assert one.version


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_batches_are_computed(name):
    one = usable(name)
    network = tiny(tiny_cnn, 3)
    one.load(network, 2)
    inputs = random_inputs(network.inputs, 0)
    assert relative_error(one.run(inputs)[0], network.reference(inputs)[0]) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_invoke_computes(name):
    one = usable(name)
    network = tiny()
    one.load(network, 1)
    inputs = random_inputs(network.inputs, 0)
    one.set_inputs(inputs)
    assert 0 < one.invoke(3) < 5
    assert relative_error(one.outputs()[0], network.reference(inputs)[0]) < 1e-5
    first = one.outputs()[0]
    one.run(random_inputs(network.inputs, 1))
    assert not np.array_equal(first, one.outputs()[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_peer_uses_the_requested_number_of_threads(name):
    one = usable(name)
    network = tiny()
    inputs = random_inputs(network.inputs, 0)
    one.load(network, 1)
    one.run(inputs)
    rest()  # other tests' threads may still be spinning
    before = os.times()
    spent = one.invoke(200)
    after = os.times()
    used = after.user + after.system - before.user - before.system
    # One thread cannot use more CPU time than time passes; the clock ticks every 10 ms.
    assert used < 1.2 * spent + 0.05


@pytest.mark.parametrize("name", NAMES)
def test_a_network_without_an_onnx_form_is_refused(name, monkeypatch):
    one = usable(name)
    network = tiny()
    monkeypatch.setattr(network, "to_onnx", lambda: None)
    with pytest.raises(TvmtuneError, match="^tiny has no ONNX form that a file could hold$"):
        one.load(network, 1)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["litert", "openvino"])
def test_tflite_files_are_read(name, batch, tmp_path, capfd):
    pytest.importorskip("ai_edge_litert")
    from networks import tflite_models

    one = usable(name)
    path = tmp_path / "tiny.tflite"
    path.write_bytes(tflite_models.tiny_cnn(batch=batch))
    network = networks.load(str(path))
    assert network.to_onnx() is None
    one.load(network, 1)
    inputs = random_inputs(network.inputs, 0)
    got, want = one.run(inputs), network.reference(inputs)
    assert [array.shape for array in got] == [array.shape for array in want]
    for left, right in zip(got, want, strict=True):
        assert relative_error(left, right) < 1e-5
    if name == "litert":
        assert capfd.readouterr().err == ""


def test_litert_resizes_open_dimensions(tmp_path):
    pytest.importorskip("ai_edge_litert")
    from networks import tflite_models

    one = usable("litert")
    path = tmp_path / "tiny.tflite"
    path.write_bytes(tflite_models.tiny_cnn(batch=-1))
    network = networks.load(str(path), batch=2)
    one.load(network, 2)
    inputs = random_inputs(network.inputs, 0)
    assert relative_error(one.run(inputs)[0], network.reference(inputs)[0]) < 1e-5


def test_litert_reads_nothing_else():
    with pytest.raises(TvmtuneError, match="^tiny is not from a .tflite file"):
        usable("litert").load(tiny(), 1)


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_no_files_remain(name, places, monkeypatch):
    one = usable(name)
    one.load(tiny(), 1)  # some libraries create files once per process
    temporary = places / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    one = peers.peer(name)
    one.load(tiny(), 1)
    one.run(random_inputs(tiny().inputs, 0))
    assert list(temporary.iterdir()) == []
    assert list((places / "working").iterdir()) == []
