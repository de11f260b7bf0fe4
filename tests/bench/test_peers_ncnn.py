"""The ncnn peer, and the converter that PyTorch shares with it."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from models import one_node, tiny_cnn
from tvmtune.bench import peers
from tvmtune.bench.peers import ncnn_runtime, pnnx_convert
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.network import OnnxNetwork

pytest.importorskip("ncnn")
pytestmark = pytest.mark.skipif(
    not pnnx_convert.installed(), reason="pnnx makes what ncnn reads of the model"
)


def tiny() -> OnnxNetwork:
    return OnnxNetwork(tiny_cnn(), name="tiny")


@pytest.fixture
def program(monkeypatch, tmp_path):
    """Replaces the converter by a Python script."""

    def replace(text: str) -> None:
        path = tmp_path / "pnnx"
        path.write_text(f"#!{sys.executable}\nimport os, sys\n{text}\n")
        path.chmod(0o755)
        monkeypatch.setattr(pnnx_convert, "_program", lambda: str(path))

    return replace


def test_a_missing_converter_is_reported_with_a_remedy(monkeypatch):
    monkeypatch.setattr(pnnx_convert, "PACKAGE", "no_such_converter")
    assert "converter pnnx is not installed: pip install 'tvmtune[ncnn]'" in str(
        peers.peer("ncnn").available()
    )


def test_threads_and_precision_are_set():
    one = ncnn_runtime.Ncnn()
    one.load(tiny(), 2)
    options = one._net.opt
    assert options.num_threads == 2
    names = [name for name in dir(options) if "fp16" in name or "bf16" in name]
    assert "use_fp16_arithmetic" in names and "use_bf16_storage" in names
    assert not any(getattr(options, name) for name in names)
    assert not options.use_vulkan_compute
    assert options.use_winograd_convolution and options.use_sgemm_convolution


def test_unsupported_types_are_refused():
    model = one_node("Relu", shape=(1, 3))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    network = OnnxNetwork(model, name="half")
    with pytest.raises(TvmtuneError, match="x: 1x3 float16 is of a type that ncnn does not"):
        peers.peer("ncnn").load(network, 1)


def test_an_unused_input_is_refused():
    model = tiny_cnn()
    unused = helper.make_tensor_value_info("unused", TensorProto.FLOAT, (1, 2))
    model.graph.input.insert(0, unused)
    with pytest.raises(TvmtuneError, match="removed inputs or outputs|cannot convert"):
        peers.peer("ncnn").load(OnnxNetwork(model, name="tiny"), 1)


def test_a_crash_of_the_converter_is_an_error(program):
    program("os.abort()")
    with pytest.raises(TvmtuneError, match="pnnx cannot convert it .exit status -6.: no output"):
        peers.peer("ncnn").load(tiny(), 1)


def test_the_converters_last_line_is_quoted(program):
    program("print('first'); print('operator Foo: no'); sys.exit(3)")
    with pytest.raises(TvmtuneError, match="exit status 3.: operator Foo: no$"):
        peers.peer("ncnn").load(tiny(), 1)


def test_a_converter_that_writes_no_files_is_an_error(program):
    program("print('done')")
    with pytest.raises(TvmtuneError, match="exit status 0.: done$"):
        peers.peer("ncnn").load(tiny(), 1)


def test_a_hanging_converter_is_stopped(program, monkeypatch):
    program("import time; time.sleep(60)")
    monkeypatch.setattr(pnnx_convert, "DEADLINE", 0.2)
    with pytest.raises(TvmtuneError, match="pnnx did not convert it within 0.2 s"):
        peers.peer("ncnn").load(tiny(), 1)


def test_a_converter_that_cannot_start_is_reported_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(pnnx_convert, "_program", lambda: str(tmp_path / "nothing"))
    with pytest.raises(
        TvmtuneError, match="pnnx cannot be started: .*pip install --force-reinstall pnnx"
    ):
        peers.peer("ncnn").load(tiny(), 1)


def test_only_wanted_files_are_kept_and_in_float32(tmp_path):
    found = pnnx_convert.convert(tiny(), tmp_path, "ncnnparam", "ncnnbin")
    assert [file.name for file in found] == ["network.ncnn.param", "network.ncnn.bin"]
    others = {file.name for file in tmp_path.iterdir()} - {file.name for file in found}
    assert others == {"network.onnx", "network.pnnxsim.onnx"}
    weights = sum(4 * len(onnx.numpy_helper.to_array(w).flat) for w in tiny_cnn().graph.initializer)
    # Batch normalization is folded into the convolutions; float16 would take half of this.
    assert Path(found[1]).stat().st_size > 0.75 * weights
