"""PyTorch programs of torch.export: specs, reference, hashes, Relax, errors for unsupported ones."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from networks.in_tvm import assert_equal, assert_tvm_agrees, run_in_tvm
from tvmtune import networks
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.torch.network import TorchNetwork

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from networks.torch_models import (  # noqa: E402
    Function,
    Nested,
    OtherNames,
    TinyCnn,
    TinyEncoder,
    image,
    tokens,
)


def export(module: nn.Module, *args: Any, **options: Any) -> Any:
    return torch.export.export(module, args, **options)


def network(module: nn.Module, *args: Any, **options: Any) -> TorchNetwork:
    return TorchNetwork(export(module.eval(), *args, **options), name="net", label="net.pt2")


def save(path: Path, program: Any) -> Path:
    torch.export.save(program, path)
    return path


def open_batch(path: Path, **bounds: int) -> Path:
    """The CNN in a file, with an open batch."""
    dims = ({0: torch.export.Dim("n", **bounds)},)
    return save(path, export(TinyCnn().eval(), image(2), dynamic_shapes=dims))


def refusal(load: Any, error: type[TvmtuneError] = TvmtuneError) -> str:
    """The message that ``load`` fails with: one line, short enough to be read."""
    with pytest.raises(TvmtuneError) as raised:
        load()
    assert raised.type is error
    text = str(raised.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


def nested_arguments() -> tuple[Any, Any]:
    first, second, third = torch.zeros(3, 2, 3)
    return (first, [second]), {"key": third}


def import_refusal(module: nn.Module, *args: Any) -> str:
    program = network(module, *args)
    return refusal(program.to_relax)


@pytest.mark.slow
def test_a_file_is_loaded_and_computes_what_pytorch_computes(tmp_path: Path):
    module = TinyCnn().eval()
    loaded = networks.load(str(save(tmp_path / "tiny.pt2", export(module, image()))))
    assert loaded.name == "tiny"
    assert [str(spec) for spec in loaded.inputs] == ["image: 1x3x16x16 float32"]
    assert [str(spec) for spec in loaded.outputs] == ["output: 1x10 float32"]
    inputs = random_inputs(loaded.inputs, seed=1)
    with torch.no_grad():
        expected = [module(torch.from_numpy(inputs["image"])).numpy()]
    assert_equal(loaded.reference(inputs), expected)
    assert_equal(run_in_tvm(loaded, inputs), expected)


@pytest.mark.slow
def test_an_encoder_takes_ids_and_a_mask_and_gives_two_outputs():
    encoder = network(TinyEncoder(), *tokens())
    assert [str(spec) for spec in encoder.inputs] == ["ids: 1x7 int64", "mask: 1x7 int64"]
    assert [str(spec) for spec in encoder.outputs] == [
        "logits: 1x5 float32",
        "hidden: 1x7x32 float32",
    ]
    assert_tvm_agrees(encoder)


@pytest.mark.slow
def test_nested_arguments_are_flattened_and_flags_keep_their_exported_values():
    nested = network(Nested(), *nested_arguments(), False)
    assert [spec.name for spec in nested.inputs] == ["pair_0", "pair_1_0", "more_key"]
    assert [str(spec) for spec in nested.outputs] == ["sum: 2x3 float32", "list_0: 2 float32"]
    assert_tvm_agrees(nested)
    inputs = random_inputs(nested.inputs)
    tensors = [torch.from_numpy(inputs[spec.name]) for spec in nested.inputs]
    expected = Nested()((tensors[0], [tensors[1]]), {"key": tensors[2]}, False)
    assert_equal(nested.reference(inputs), [expected["sum"].numpy(), expected["list"][0].numpy()])


def last_and_reversed(x: Any) -> Any:
    return x[:, -1], x[torch.tensor([-1, 0])], x[..., -2:], x.squeeze(-2)


def extrema(x: Any) -> Any:
    return x.amax(1), x.amin((0, 2), keepdim=True), x.prod(1), x.max(1).values, x.max(1).indices


def lookups(x: Any, i: Any) -> Any:
    return x[i], x[:, i], x.index_select(0, i), x.gather(0, i[:, None, None].expand(3, 1, 4))


IDS = np.array([1, 0, 1])


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (last_and_reversed, [(3, 1, 4)]),
        (extrema, [(2, 3, 4)]),
        (lambda x: (functional.selu(x), functional.elu(x, 0.3)), [(3, 4)]),
        (lambda x: functional.group_norm(x, 2), [(2, 4, 5, 5)]),
        (lambda x: functional.interpolate(x, scale_factor=2.0, mode="bicubic"), [(1, 2, 5, 5)]),
        (lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2), [(3,), (2, 4), (4, 3)]),
        (
            lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
            [(1, 2, 5, 8)],
        ),
        (lambda x: (x, x + 1, x), [(2, 3)]),
    ],
    ids=["indices", "extrema", "elu", "group_norm", "bicubic", "addmm", "attention", "same twice"],
)
@pytest.mark.slow
def test_tricky_operators_match_pytorch(function: Any, shapes: Any):
    assert_tvm_agrees(network(Function(function), *(torch.zeros(shape) for shape in shapes)))


@pytest.mark.slow
def test_lookups_accept_int64_indices():
    assert_tvm_agrees(network(Function(lookups), torch.zeros(2, 3, 4), torch.zeros(3, dtype=int)))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_matrix_products_keep_their_dtype(dtype: str):
    kind = getattr(torch, dtype)
    linear = network(
        nn.Sequential(nn.Linear(4, 5), nn.ReLU()).to(kind), torch.zeros(3, 4, dtype=kind)
    )
    assert [spec.dtype for spec in (*linear.inputs, *linear.outputs)] == [dtype, dtype]
    assert_tvm_agrees(linear, tolerance=2e-3 if dtype == "float16" else 1e-12)


def test_bfloat16_inputs_and_outputs():
    double = network(Function(lambda x: x * 2), torch.zeros(3, dtype=torch.bfloat16))
    assert double.inputs[0].dtype == "bfloat16"
    inputs = random_inputs(double.inputs)
    assert_equal(double.reference(inputs), [inputs["x_0"] * 2])


def test_batch_norms_are_folded_into_convolutions():
    text = network(TinyCnn(), image()).to_relax().script(show_meta=False)
    assert "conv2d" in text
    assert "batch_norm" not in text


@pytest.mark.slow
def test_a_convolution_that_others_use_keeps_its_batch_norm():
    conv, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    nn.init.uniform_(norm.running_mean, -1, 1)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = conv, norm

        def forward(self, x: Any, y: Any) -> Any:
            # The same weights twice, and a result that is used with and without its norm.
            first = self.conv(x)
            return self.norm(first) + first, self.norm(self.conv(y))

    both = network(Both(), image(), image())
    assert "batch_norm" in both.to_relax().script(show_meta=False)
    assert_tvm_agrees(both)


@pytest.mark.slow
def test_importing_does_not_change_the_network():
    cnn = network(TinyCnn(), image())
    inputs = random_inputs(cnn.inputs)
    before = cnn.reference(inputs)
    cnn.to_relax()
    np.testing.assert_array_equal(cnn.reference(inputs)[0], before[0])


@pytest.mark.slow
def test_an_open_batch_is_bound_as_in_onnx_files(tmp_path: Path):
    path = str(open_batch(tmp_path / "open.pt2"))
    assert networks.load(path).inputs[0].shape == (1, 3, 16, 16)
    three = networks.load(path, batch=3)
    assert (three.inputs[0].shape, three.outputs[0].shape) == ((3, 3, 16, 16), (3, 10))
    assert_tvm_agrees(three)
    assert networks.load(path, shapes={"image": (2, 3, 16, 16)}).outputs[0].shape == (2, 10)


def test_a_bound_program_equals_one_exported_with_that_shape(tmp_path: Path):
    bound = networks.load(str(open_batch(tmp_path / "open.pt2")), batch=2)
    exported = network(TinyCnn(), image(2))
    assert bound.structure_hash == exported.structure_hash
    assert bound.weights_hash == exported.weights_hash


def test_a_network_is_reloaded_from_its_source(tmp_path: Path):
    first = networks.load(str(open_batch(tmp_path / "open.pt2")), batch=4)
    again = networks.reload(first.source)
    assert again.inputs == first.inputs
    assert again.structure_hash == first.structure_hash
    assert again.weights_hash == first.weights_hash


@pytest.mark.slow
def test_open_dimensions_are_named_with_the_remedy():
    length = torch.export.Dim("length", max=16)
    dims = ({1: length}, {1: length})
    program = export(TinyEncoder().eval(), *tokens(), dynamic_shapes=dims)
    text = refusal(lambda: TorchNetwork(program, name="net"), UsageError)
    assert "input 'ids' of net has dynamic dimensions: [1, " in text
    assert "--shape ids:1x128" in text
    bound = TorchNetwork(program, name="net", shapes={"ids": (1, 5)})
    assert [spec.shape for spec in bound.inputs] == [(1, 5), (1, 5)]


def test_an_extent_outside_the_exported_range_is_refused(tmp_path: Path):
    path = str(open_batch(tmp_path / "open.pt2", min=2, max=8))
    text = refusal(lambda: networks.load(path, batch=9), UsageError)
    assert "dimension 0 of input 'image'" in text
    assert "would be 9, but the network was exported for 2 to 8" in text


def test_shapes_unsupported_by_operators_are_refused():
    dims = ({0: torch.export.Dim("a")}, {0: torch.export.Dim("b")})
    program = export(
        Function(lambda x, y: (x * 2, y)),
        torch.zeros(4, 2),
        torch.zeros(6, 2),
        dynamic_shapes=(dims,),
    )
    fine = TorchNetwork(program, name="net", shapes={"x_0": (3, 2), "x_1": (5, 2)})
    assert [spec.shape for spec in fine.outputs] == [(3, 2), (5, 2)]
    dims = ({0: 2 * torch.export.Dim("half")},)
    program = export(Function(lambda x: x.view(2, -1)), torch.zeros(4), dynamic_shapes=(dims,))
    text = refusal(lambda: TorchNetwork(program, name="net", shapes={"x_0": (5,)}), UsageError)
    assert "net cannot take the inputs x_0: 5 float32" in text


def test_a_fixed_batch_cannot_be_changed(tmp_path: Path):
    path = save(tmp_path / "fixed.pt2", export(TinyCnn().eval(), image()))
    assert "fixed batch size" in refusal(lambda: networks.load(str(path), batch=2), UsageError)


@pytest.mark.parametrize(
    ("module", "x", "named"),
    [
        (TinyCnn(), image(2), "node 'batch_norm' (aten.batch_norm.default, layer 'norm')"),
        (
            nn.Sequential(nn.Dropout()),
            torch.zeros(3),
            "node 'dropout' (aten.dropout.default, layer '0')",
        ),
    ],
    ids=["batch norm", "dropout"],
)
def test_a_program_in_training_mode_is_refused(module: nn.Module, x: Any, named: str):
    text = refusal(lambda: TorchNetwork(export(module.train(), x), name="net"))
    assert text.startswith(f"{named} of net computes as in training")
    assert "model.eval()" in text


def test_batch_normalization_without_running_statistics_has_no_mode():
    """As weight standardization uses it."""

    class Standardized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.norm = nn.BatchNorm2d(8, track_running_stats=False)

        def forward(self, x: Any) -> Any:
            weight = self.conv.weight
            flat = nn.functional.batch_norm(weight.reshape(1, 8, -1), None, None, training=True)
            return self.norm(nn.functional.conv2d(x, flat.reshape_as(weight)))

    assert_tvm_agrees(TorchNetwork(export(Standardized().eval(), image(2)), name="net"))


def test_an_operator_that_draws_random_numbers_is_named():
    text = import_refusal(Function(lambda x: x + torch.rand_like(x)), torch.zeros(3))
    assert "node 'rand_like' (aten.rand_like.default) of net.pt2 draws random numbers" in text


def test_an_operator_that_the_importer_lacks_is_named_with_its_layer():
    module = nn.Sequential(nn.ReLU(), Function(torch.lgamma))
    text = import_refusal(module, image())
    assert text.startswith("node 'lgamma' (aten.lgamma.default, layer '1')")
    assert "is not supported by the importer" in text
    assert "export it again" in text


def test_an_operator_of_another_library_is_not_confused_with_atens():
    library = torch.library.Library("tvmtune_test", "FRAGMENT")
    library.define("relu(Tensor x) -> Tensor")
    library.impl("relu", lambda x: x.clamp(min=1), "CompositeExplicitAutograd")
    text = import_refusal(Function(lambda x: torch.ops.tvmtune_test.relu(x)), torch.zeros(3))
    assert "(tvmtune_test.relu.default) of net.pt2 is not one of PyTorch's core operators" in text


def test_an_unsupported_second_result_is_refused():
    pool = Function(lambda x: functional.max_pool2d(x, 2, return_indices=True))
    text = import_refusal(pool, image())
    assert "node 'max_pool2d_with_indices'" in text
    assert "only the first is supported" in text


@pytest.mark.slow
def test_control_flow_is_named():
    def branch(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    assert "node 'cond' (cond)" in import_refusal(Function(branch), torch.zeros(3))


def test_a_shape_that_depends_on_the_data_is_refused():
    text = refusal(lambda: network(Function(lambda x: torch.nonzero(x)), torch.zeros(3)))
    assert "the shape of output 'output' of net.pt2 depends on the data" in text


def test_the_structure_hash_ignores_names_and_weights():
    first, second = network(TinyCnn(), image()), network(TinyCnn(seed=1), image())
    assert first.structure_hash == second.structure_hash
    assert first.weights_hash != second.weights_hash
    renamed = network(OtherNames(), image())
    assert (renamed.structure_hash, renamed.weights_hash) == (
        first.structure_hash,
        first.weights_hash,
    )


def test_the_structure_hash_sees_shapes_attributes_and_small_integers():
    x = torch.zeros(1, 4, 8, 8)
    hashes = {
        network(module, x).structure_hash
        for module in (
            nn.MaxPool2d(2),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.AvgPool2d(2),
            Function(lambda y: y[:, torch.tensor([0, 1])]),
            Function(lambda y: y[:, torch.tensor([1, 0])]),
        )
    }
    hashes.add(network(nn.MaxPool2d(2), x[:, :2]).structure_hash)
    assert len(hashes) == 6


def test_to_torch_takes_tensors_by_position_and_returns_a_tuple():
    nested = network(Nested(), *nested_arguments())
    inputs = random_inputs(nested.inputs)
    with torch.no_grad():
        results = nested.to_torch()(*(torch.from_numpy(inputs[s.name]) for s in nested.inputs))
    assert isinstance(results, tuple)
    assert_equal([result.numpy() for result in results], nested.reference(inputs))


@pytest.mark.slow
def test_the_onnx_form_computes_the_same_under_the_same_names():
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    encoder = network(TinyEncoder(), *tokens())
    session = onnxruntime.InferenceSession(encoder.to_onnx(), providers=["CPUExecutionProvider"])
    inputs = random_inputs(encoder.inputs)
    assert [o.name for o in session.get_outputs()] == [spec.name for spec in encoder.outputs]
    assert_equal(session.run(None, inputs), encoder.reference(inputs))


def test_programs_that_pytorch_cannot_export_have_no_onnx_form(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def export_fails(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'onnxscript'")

    cnn = network(TinyCnn(), image())
    monkeypatch.setattr(torch.onnx, "export", export_fails)
    assert cnn.to_onnx() is None
    assert capsys.readouterr().out == ""


def test_the_reference_checks_its_inputs_and_leaves_pytorch_s_threads_alone():
    cnn = network(TinyCnn(), image())
    before = torch.get_num_threads()
    cnn.reference(random_inputs(cnn.inputs))
    assert torch.get_num_threads() == before
    with pytest.raises(UsageError, match="1x3x8x8 float32.*1x3x16x16 float32"):
        cnn.reference({"image": np.zeros((1, 3, 8, 8), np.float32)})


def archive(*members: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for member in members:
            file.writestr(f"model/{member}", "x")
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "is empty"),
        (b"import torch\n" * 40, "but text; make one with torch.export.save"),
        (b"\x80\x02}q\x00", "a Python pickle"),
        (bytes(4) + b"TFL3" + bytes(100), "but a TFLite model; give it the suffix .tflite"),
        (bytes(range(256)), "is damaged or not a PyTorch .pt2 file"),
        (archive("data.pkl"), "but a PyTorch checkpoint of torch.save; make one"),
        (archive("constants.pkl", "data.pkl"), "but a TorchScript program; make one"),
        (archive("readme.txt"), "but another zip archive; make one"),
        (archive("archive_format", "data/aotinductor/m.so"), "AOTInductor compiled"),
        (archive("archive_format", "archive_version"), "cannot be loaded by PyTorch"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_other_kinds_of_files_are_recognized(
    tmp_path: Path, content: bytes, kind: str, capfd: pytest.CaptureFixture[str]
):
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    text = refusal(lambda: networks.load(str(path)))
    assert str(path) in text
    assert kind in text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: float):
    path = save(tmp_path / "model.pt2", export(TinyCnn().eval(), image()))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    assert refusal(lambda: networks.load(str(path))).startswith(f"{path} is damaged")


def test_a_missing_file_suggests_similar_files(tmp_path: Path):
    path = save(tmp_path / "tiny.pt2", export(TinyCnn().eval(), image()))
    text = refusal(lambda: networks.load(str(tmp_path / "tinny.pt2")), UsageError)
    assert str(path) in text


def test_missing_pytorch_is_reported_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = save(tmp_path / "tiny.pt2", export(TinyCnn().eval(), image()))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install torch" in refusal(lambda: networks.load(str(path)), UsageError)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "inputs"), [(TinyCnn, (image(),)), (TinyEncoder, tokens())], ids=["cnn", "encoder"]
)
def test_a_compiled_library_is_correct(tmp_path: Path, module: Any, inputs: Any):
    import tvmtune
    from tvmtune.api import plan
    from tvmtune.bench.verify import run_check

    path = save(tmp_path / "net.pt2", export(module().eval(), *inputs))
    made = plan(tvmtune.load(str(path)), "cpu")
    tvmtune.compile(made, tmp_path / "net.so")
    library = tvmtune.Library.open(tmp_path / "net.so")
    assert run_check(library, library.metadata["check"]).passed
