"""TFLite models: specs, reference, hashes, Relax, and messages about unsupported ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from networks.in_tvm import assert_equal, assert_tvm_agrees
from tvmtune import networks
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.tflite.network import TfliteNetwork

pytest.importorskip("tflite")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")

from networks.tflite_models import (  # noqa: E402
    RELU,
    SAME,
    VALID,
    TfliteBuilder,
    one_operator,
    tiny_cnn,
    weights,
)


def network(content: bytes, **options: Any) -> TfliteNetwork:
    return TfliteNetwork(content, name="net", label="net.tflite", **options)


def refusal(load: Any, error: type[TvmtuneError] = TvmtuneError) -> str:
    """The message that ``load`` fails with: one line, short enough to be read."""
    with pytest.raises(TvmtuneError) as raised:
        load()
    assert raised.type is error
    text = str(raised.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


def run_in_litert(content: bytes, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of LiteRT's interpreter with its defaults, from the unmodified file."""
    machine = interpreter.Interpreter(model_content=content)
    for detail in machine.get_input_details():
        machine.resize_tensor_input(detail["index"], inputs[detail["name"]].shape)
    machine.allocate_tensors()
    for detail in machine.get_input_details():
        machine.set_tensor(detail["index"], inputs[detail["name"]])
    machine.invoke()
    return [machine.get_tensor(detail["index"]) for detail in machine.get_output_details()]


def assert_right(content: bytes, **options: Any) -> TfliteNetwork:
    """LiteRT on the file, the reference and TVM agree."""
    made = network(content, **options)
    inputs = random_inputs(made.inputs, seed=3)
    assert_equal(made.reference(inputs), run_in_litert(content, inputs))
    assert_tvm_agrees(made, seed=3)
    return made


def one(operator: str, shape: Any, output: Any, *constants: Any, **options: Any) -> bytes:
    """``x`` and constants through an operator."""
    g = TfliteBuilder()
    given = [g.input("x", shape), *(g.constant(value) for value in constants)]
    return g.content(g.add(operator, given, output, **options))


def test_a_file_is_loaded_and_computes_what_litert_computes(tmp_path: Path):
    path = tmp_path / "tiny.tflite"
    path.write_bytes(tiny_cnn())
    loaded = networks.load(str(path))
    assert loaded.name == "tiny"
    assert [str(spec) for spec in loaded.inputs] == ["image: 1x16x16x3 float32"]
    assert [str(spec) for spec in loaded.outputs] == ["probabilities: 1x10 float32"]
    assert loaded.to_onnx() is None
    assert_right(tiny_cnn())


def test_a_network_is_reloaded_from_its_source(tmp_path: Path):
    path = tmp_path / "open.tflite"
    path.write_bytes(tiny_cnn(batch=-1))
    first = networks.load(str(path), batch=4)
    again = networks.reload(first.source)
    assert (
        again.inputs
        == first.inputs
        == networks.load(str(path), shapes={"image": (4, 16, 16, 3)}).inputs
    )
    assert again.structure_hash == first.structure_hash


def test_a_network_in_nhwc_stays_there():
    from tvmtune.passes.pipeline import prepare
    from tvmtune.types import Device

    device = Device(backend="cpu", target={"kind": "llvm"}, threads=1)
    graph = prepare(network(tiny_cnn()), device).graph.script(show_meta=False)
    assert "nn.conv2d" in graph
    assert "permute_dims" not in graph


@pytest.mark.parametrize("batch", [1, 3])
def test_an_open_batch_is_bound_and_shape_arithmetic_is_folded(batch: int):
    bound = assert_right(tiny_cnn(batch=-1), batch=batch)
    assert bound.inputs[0].shape == (batch, 16, 16, 3)
    assert bound.outputs[0].shape == (batch, 10)
    assert "shape_of" not in bound.to_relax().script(show_meta=False)


def test_a_bound_model_has_the_structure_of_a_static_one():
    bound, static = network(tiny_cnn(batch=-1), batch=2), network(tiny_cnn(batch=2))
    assert bound.structure_hash == static.structure_hash
    assert bound.weights_hash == static.weights_hash


def test_open_dimensions_are_named_with_the_remedy():
    content = one_operator("ABS", (-1, -1, 3))
    text = refusal(lambda: network(content), UsageError)
    assert "input 'x' of net.tflite has dynamic dimensions: [?, ?, 3]" in text
    assert "--shape x:1x128x3" in text
    assert assert_right(content, shapes={"x": (1, 5, 3)}).outputs[0].shape == (1, 5, 3)


def test_a_fixed_batch_cannot_be_changed():
    text = refusal(lambda: network(tiny_cnn(), batch=2), UsageError)
    assert "fixed batch size" in text


def test_shapes_unsupported_by_operators_are_refused():
    content = one("RESHAPE", (-1, 3), (2, 3), np.array([2, 3], np.int32))
    assert network(content, batch=2).outputs[0].shape == (2, 3)
    text = refusal(lambda: network(content, batch=4))
    assert "LiteRT cannot run net.tflite on the inputs x: 4x3 float32" in text


X = (1, 9, 8, 4)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "content",
    [
        one(
            "CONV_2D", X, (1, 5, 4, 6), weights(1, 6, 3, 3, 4), weights(2, 6),
            padding=SAME, strideW=2, strideH=2,
        ),
        one(
            "CONV_2D", X, (1, 9, 8, 6), weights(1, 6, 3, 3, 4), weights(2, 6),
            padding=SAME, strideW=1, strideH=1, dilationWFactor=2, dilationHFactor=2,
        ),
        one(
            "CONV_2D", X, (1, 7, 6, 6), weights(1, 6, 3, 3, 2), weights(2, 6),
            padding=VALID, strideW=1, strideH=1,
        ),
        one(
            "DEPTHWISE_CONV_2D", X, (1, 7, 6, 8), weights(1, 1, 3, 3, 8), weights(2, 8),
            padding=VALID, strideW=1, strideH=1, depthMultiplier=2, fusedActivationFunction=RELU,
        ),
        one(
            "MAX_POOL_2D", X, (1, 5, 4, 4),
            padding=SAME, strideW=2, strideH=2, filterWidth=3, filterHeight=3,
        ),
        one(
            "AVERAGE_POOL_2D", X, (1, 5, 4, 4),
            padding=SAME, strideW=2, strideH=2, filterWidth=3, filterHeight=3,
        ),
        one("PAD", X, (1, 12, 9, 4), np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32)),
        one("MEAN", X, (1, 4), np.array([1, 2], np.int32)),
        one("TRANSPOSE", X, (1, 4, 9, 8), np.array([0, 3, 1, 2], np.int32)),
        one("RESIZE_BILINEAR", X, (1, 18, 16, 4), np.array([18, 16], np.int32)),
        one(
            "RESIZE_BILINEAR", X, (1, 18, 16, 4), np.array([18, 16], np.int32),
            halfPixelCenters=True,
        ),
        one("RESIZE_NEAREST_NEIGHBOR", X, (1, 18, 16, 4), np.array([18, 16], np.int32)),
        one(
            "FULLY_CONNECTED", (2, 3, 4), (2, 3, 5), weights(1, 5, 4), weights(2, 5),
            keepNumDims=True,
        ),
        one("LEAKY_RELU", (2, 3), (2, 3), alpha=0.2),
        one("SOFTMAX", (2, 3), (2, 3), beta=0.5),
        one("EXPAND_DIMS", (2, 3), (2, 1, 3), np.array(-2, np.int32)),
        *(one_operator(operator) for operator in ("ELU", "GELU", "HARD_SWISH", "LOGISTIC", "TANH")),
    ],
    ids=[
        "strided", "dilated", "grouped", "depthwise", "max pool", "average pool", "pad", "mean",
        "transpose", "bilinear", "half pixel", "nearest", "dense", "leaky relu", "softmax",
        "expand dims", "elu", "gelu", "hard swish", "logistic", "tanh",
    ],
)  # fmt: skip
def test_operators_compute_what_litert_computes(content: bytes):
    assert_right(content)


def test_transposed_convolutions_are_converted_to_nchw():
    g = TfliteBuilder()
    x = g.input("x", (1, 4, 4, 3))
    given = [g.constant([1, 8, 8, 5], "int32"), g.constant(weights(1, 5, 3, 3, 3)), x]
    assert_right(
        g.content(g.add("TRANSPOSE_CONV", given, (1, 8, 8, 5), padding=SAME, strideW=2, strideH=2))
    )


def test_several_inputs_and_outputs_keep_their_names_and_order():
    g = TfliteBuilder()
    ids, x = g.input("ids", (2,), "int32"), g.input("x", (3, 4))
    rows = g.add("GATHER", [x, ids], (2, 4), name="rows", axis=0)
    twice = g.add("CONCATENATION", [rows, rows], (2, 8), name="twice", axis=1)
    made = assert_right(g.content(twice, rows))
    assert [str(spec) for spec in made.inputs] == ["ids: 2 int32", "x: 3x4 float32"]
    assert [str(spec) for spec in made.outputs] == ["twice: 2x8 float32", "rows: 2x4 float32"]


def test_float16_weights_become_float32():
    g = TfliteBuilder()
    x = g.input("x", (2, 4))
    half = g.constant(weights(1, 5, 4).astype(np.float16))
    dense = g.add("FULLY_CONNECTED", [x, g.add("DEQUANTIZE", [half], (5, 4)), -1], (2, 5))
    made = assert_right(g.content(dense))
    assert "float16" not in made.to_relax().script(show_meta=False)


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        ("FlexErf", "operator 1 (FlexErf) of net.tflite is TensorFlow's own Erf"),
        ("Mine", "operator 1 (Mine) of net.tflite is a custom operator"),
        ("WHILE", "operator 1 (WHILE) of net.tflite runs another graph"),
    ],
)
def test_an_operator_that_is_not_built_in_is_named_with_its_index(operator: str, message: str):
    g = TfliteBuilder()
    x = g.add("ABS", [g.input("x", (1, 4))], (1, 4))
    text = refusal(lambda: network(g.content(g.add(operator, [x], (1, 4)))))
    assert text.startswith(message)
    assert "convert the network" in text


def test_an_operator_that_the_importer_lacks_is_named_with_its_index(
    monkeypatch: pytest.MonkeyPatch,
):
    from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter

    made = OperatorConverter.__init__

    def without_tanh(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        del self.convert_map["TANH"]

    # It has converters for all operators of this schema; a later one may have others.
    monkeypatch.setattr(OperatorConverter, "__init__", without_tanh)
    text = refusal(network(one_operator("TANH")).to_relax)
    assert text.startswith("operator 0 (TANH) of net.tflite is not supported by the importer")


def test_a_failing_conversion_is_named_with_its_index():
    g = TfliteBuilder()
    x = g.add("ABS", [g.input("x", (1, 4))], (1, 4))
    # L2_NORMALIZATION without its options, which LiteRT does not need.
    text = refusal(network(g.content(g.add("L2_NORMALIZATION", [x], (1, 4)))).to_relax)
    assert text.startswith("operator 1 (L2_NORMALIZATION) of net.tflite cannot be imported")


def test_a_shape_that_depends_on_the_data_is_refused():
    g = TfliteBuilder()
    zero = g.constant(np.float32(0))
    positive = g.add("GREATER", [g.input("x", (8,)), zero], (8,), "bool")
    content = g.content(g.add("WHERE", [positive], (-1, 1), "int64"))
    text = refusal(lambda: network(content))
    assert "the shape that operator 1 (WHERE) of net.tflite makes depends on the data" in text


def test_the_structure_hash_ignores_names_and_weights_but_not_options():
    first, second = network(tiny_cnn()), network(tiny_cnn(seed=20))
    assert first.structure_hash == second.structure_hash
    assert first.weights_hash != second.weights_hash
    assert network(tiny_cnn()).weights_hash == first.weights_hash
    hashes = {
        network(one("LEAKY_RELU", shape, shape, alpha=alpha)).structure_hash
        for shape, alpha in [((1, 4), 0.1), ((1, 4), 0.2), ((1, 5), 0.1)]
    }
    axes = {
        network(one("MEAN", X, (1, 4), np.array(axes, np.int32))).structure_hash
        for axes in ([1, 2], [2, 1])
    }
    assert (len(hashes), len(axes)) == (3, 2)


def test_the_reference_checks_its_inputs():
    with pytest.raises(UsageError, match="1x3x16x16 float32.*1x16x16x3 float32"):
        network(tiny_cnn()).reference({"image": np.zeros((1, 3, 16, 16), np.float32)})


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "is empty"),
        (b"a: 1\n" * 40, "but text; make one with tf.lite.TFLiteConverter"),
        (b"PK\x03\x04" + bytes(200), "but a zip archive"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "perhaps a Keras model; make one"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (bytes(range(256)), "is damaged or not a TFLite file"),
    ],
)
def test_other_kinds_of_files_are_recognized(tmp_path: Path, content: bytes, kind: str):
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    text = refusal(lambda: networks.load(str(path)))
    assert str(path) in text
    assert kind in text


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: float):
    path = tmp_path / "model.tflite"
    path.write_bytes(tiny_cnn()[: int(len(tiny_cnn()) * kept)])
    assert "is damaged" in refusal(lambda: networks.load(str(path)))


def test_an_operator_that_litert_does_not_know_yet_is_named(tmp_path: Path):
    path = tmp_path / "new.tflite"
    path.write_bytes(one_operator("STABLEHLO_CBRT"))
    text = refusal(lambda: networks.load(str(path)))
    assert f"LiteRT cannot load {path}" in text
    assert "STABLEHLO_CBRT" in text


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "tiny.tflite"
    path.write_bytes(tiny_cnn())
    monkeypatch.setitem(sys.modules, "tflite", None)
    assert "pip install tflite" in refusal(lambda: networks.load(str(path)), UsageError)


@pytest.mark.slow
def test_a_compiled_library_is_correct(tmp_path: Path):
    import tvmtune
    from tvmtune.api import plan
    from tvmtune.bench.verify import run_check

    path = tmp_path / "tiny.tflite"
    path.write_bytes(tiny_cnn(batch=-1))
    made = plan(tvmtune.load(str(path), batch=2), "cpu")
    tvmtune.compile(made, tmp_path / "net.so")
    library = tvmtune.Library.open(tmp_path / "net.so")
    assert run_check(library, library.metadata["check"]).passed
