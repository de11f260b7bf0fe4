"""Binding of dynamic dimensions: by --shape, by shared symbols, by --batch."""

from __future__ import annotations

import pytest
from onnx import TensorProto
from onnx.helper import make_tensor_value_info

from models import one_node, tiny_cnn, tiny_encoder
from tvmtune import phases
from tvmtune.errors import UsageError
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.shapes import resolve


def shapes_of(declared, *, batch=1, shapes=None):
    return resolve(declared, batch=batch, shapes=shapes, label="net.onnx")[0]


def refusal(declared, *, batch=1, shapes=None) -> str:
    with pytest.raises(UsageError) as raised:
        shapes_of(declared, batch=batch, shapes=shapes)
    text = str(raised.value)
    assert "net.onnx" in text or "--shape" in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("dim", ["N", None])
def test_the_batch_binds_an_open_first_dimension(dim: str | None):
    assert shapes_of({"x": (dim, 3)}, batch=4) == {"x": (4, 3)}


def test_the_batch_binds_every_input():
    assert shapes_of({"x": ("N", 3), "y": ("N",)}, batch=2) == {"x": (2, 3), "y": (2,)}


def test_a_batch_that_nobody_chose_is_noted():
    notes: list[str] = []
    with phases.reading(notes.append):
        shapes_of({"x": ("N", 3), "y": ("N",)})
        assert notes == ["dynamic batch bound to 1 (--batch N)"]
        shapes_of({"x": ("N", 3)}, batch=2)
        shapes_of({"x": ("N", 3)}, shapes={"x": (1, 3)})
        shapes_of({"x": (1, 3)})
    assert len(notes) == 1


def test_a_shape_binds_the_same_symbols_of_other_inputs():
    declared = {"ids": ("N", "S"), "mask": ("N", "S"), "bias": ("S",)}
    bound = shapes_of(declared, shapes={"ids": (2, 128)})
    assert bound == {"ids": (2, 128), "mask": (2, 128), "bias": (128,)}


def test_a_shape_may_set_the_rank():
    assert shapes_of({"x": None}, shapes={"x": (1, 3, 8, 8)}) == {"x": (1, 3, 8, 8)}


def test_static_dimensions_may_be_repeated():
    assert shapes_of({"x": (1, 3)}, shapes={"x": (1, 3)}) == {"x": (1, 3)}


def test_a_scalar_input_is_static():
    assert shapes_of({"x": (), "y": ("N",)}, batch=2) == {"x": (), "y": (2,)}


def test_an_open_dimension_names_input_dimensions_and_remedy():
    text = refusal({"data": ("N", 3, "H", None)}, batch=8)
    assert "input 'data' of net.onnx has dynamic dimensions: [N, 3, H, ?]" in text
    assert "--shape data:8x3x224x224" in text


def test_an_input_without_rank_needs_a_shape():
    assert "--shape x:1x3x224x224" in refusal({"x": None})


def test_a_fixed_batch_cannot_be_changed():
    text = refusal({"x": (1, 3)}, batch=4)
    assert "fixed batch size (x [1, 3])" in text
    assert "omit --batch" in text


def test_the_batch_of_the_file_may_be_repeated():
    assert shapes_of({"x": (4, 3)}, batch=4) == {"x": (4, 3)}


def test_an_unknown_input_lists_the_known_ones():
    text = refusal({"x": (1, 3), "y": ("N",)}, shapes={"z": (1,)})
    assert "no input 'z'; its inputs are: x [1, 3], y [N]" in text


def test_another_rank_is_refused():
    assert "has 2 dimensions, but input 'x' of net.onnx has 3: [N, C, 8]" in refusal(
        {"x": ("N", "C", 8)}, shapes={"x": (1, 3)}
    )


def test_a_static_dimension_cannot_be_contradicted():
    assert "dimension 1 is fixed at 3" in refusal({"x": ("N", 3)}, shapes={"x": (1, 4)})


def test_extents_are_positive():
    assert "at least 1" in refusal({"x": ("N", 3)}, shapes={"x": (-1, 3)})


def test_a_symbol_has_one_extent():
    text = refusal({"x": ("N",), "y": ("N",)}, shapes={"x": (2,), "y": (3,)})
    assert "dimension 'N' of net.onnx would be both 2 and 3" in text


def test_a_shape_and_a_batch_must_agree():
    assert "contradicts --batch 2" in refusal({"x": ("N", 3)}, batch=2, shapes={"x": (4, 3)})


def test_symbolic_inputs_of_a_model_are_bound_with_its_outputs():
    network = OnnxNetwork(tiny_encoder("N", "S"), name="net", batch=2, shapes={"mask": (2, 6)})
    assert [spec.shape for spec in network.inputs] == [(2, 6), (2, 6)]
    assert [spec.shape for spec in network.outputs] == [(2, 6, 16), (2, 16)]


def test_a_symbolic_model_needs_shapes():
    with pytest.raises(
        UsageError, match="'ids' of net has dynamic dimensions: \\[N, S\\]; .*ids:1x128"
    ):
        OnnxNetwork(tiny_encoder("N", "S"), name="net")


def test_a_fixed_model_keeps_its_batch():
    with pytest.raises(UsageError, match="fixed batch size"):
        OnnxNetwork(tiny_cnn(batch=1), name="net", batch=2)


def test_an_unsupported_shape_is_refused_with_the_node():
    model = one_node("MaxPool", shape=("N", 3, "H", "W"), kernel_shape=[2, 2])
    model.graph.node.add(op_type="MatMul", input=["y", "y"], output=["z"], name="square")
    model.graph.output[0].name = "z"
    with pytest.raises(UsageError, match="x: 1x3x8x9 float32.*square"):
        OnnxNetwork(model, name="net", shapes={"x": (1, 3, 8, 9)})


@pytest.mark.parametrize("placeholder", ["?", "-1"])
def test_placeholders_of_exporters_name_no_dimension(placeholder: str):
    """Paddle's exporter calls every dynamic dimension ``?``."""
    shape = (placeholder, 3, placeholder, placeholder)
    model = one_node("Relu", shape=shape)
    model.graph.output[0].CopyFrom(make_tensor_value_info("y", TensorProto.FLOAT, shape))
    network = OnnxNetwork(model, name="net", shapes={"x": (1, 3, 48, 192)})
    assert [spec.shape for spec in (*network.inputs, *network.outputs)] == [(1, 3, 48, 192)] * 2
