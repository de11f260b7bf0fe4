"""The options of calibration: methods, layers in float, a global scale and an accuracy budget."""

from __future__ import annotations

import numpy as np
import pytest

from cli.commands import complaint, tvmtune
from quantize import cnn
from tvmtune import api, networks
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks import quantization
from tvmtune.networks.inputs import random_inputs, read_samples
from tvmtune.networks.int8 import Int8Network
from tvmtune.networks.onnx import calibration, quantize
from tvmtune.networks.onnx.integer_layers import IntegerLayers
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.quantization import Calibration
from tvmtune.networks.zoo.graph_builder import GraphBuilder

pytestmark = pytest.mark.filterwarnings("ignore:.*is calibrated with.*")

VNNI = {"mcpu": "cascadelake"}


def samples(network, count=4):
    return [random_inputs(network.inputs, seed) for seed in range(count)]


def found(network, **options):
    """What calibration says of the network."""
    calibrated = Int8Network(network, options=Calibration(**options)).calibrated(samples(network))
    return calibrated.source[quantization.KEY]


def ranges_with_an_outlier(method: str) -> tuple[float, float]:
    """The range of a ReLU's output in which one value of 100,000 is far out."""
    values = np.random.default_rng(0).standard_normal((1, 1, 1, 100_000)).astype("float32")
    values[0, 0, 0, 0] = 1000
    network = cnn.one_convolution(values.shape)
    model = quantize.prepared(network.to_onnx(), "one")
    (tensor,) = IntegerLayers(model).tensors
    options = Calibration(method)
    result = calibration.ranges(model, "one", [tensor], [{"data": values}], options)
    return tuple(result[tensor])


def test_minmax_keeps_an_outlier_and_the_others_cut_it():
    assert ranges_with_an_outlier("minmax") == pytest.approx((-4.5, 1000), abs=0.5)
    low, high = ranges_with_an_outlier("percentile")
    assert low == pytest.approx(-4, abs=1)
    assert 3 < high < 6
    low, high = ranges_with_an_outlier("entropy")
    assert low == pytest.approx(-4.5, abs=0.5)
    assert 3 < high < 130  # the fewest bins with 128 steps: 1000 / 2048 each


def test_entropy_of_a_uniform_distribution_cuts_nothing():
    hist = np.full(calibration.BINS, 10.0)
    bounds = quantize.Range(0.0, 5.0)
    assert calibration._entropy(hist, bounds) == bounds


def test_entropy_cuts_a_long_thin_tail():
    hist = np.round(1e6 * np.exp(-0.5 * (np.arange(calibration.BINS) / 60) ** 2))
    hist[-1] = 1
    low, high = calibration._entropy(hist, quantize.Range(-1.0, 1.0))
    assert high == -low
    assert 0.1 < high < 0.5


def test_a_global_scale_is_the_reach_of_all_activations():
    ranges = found(cnn.residual(), global_scale=8.0)["ranges"]
    assert ranges
    assert all(high == 8 and low in (0, -8) for low, high in ranges.values())
    assert {low for low, _ in ranges.values()} == {0, -8}  # what follows a ReLU has no sign


@pytest.mark.slow
def test_layers_can_be_kept_in_float_by_position_name_and_pattern():
    network = cnn.residual()
    names = [layer["name"] for layer in found(network)["layers"]]
    options = {"skip_layers": ("0", "second*", names[-1])}
    wanted = [names[0], *(n for n in names if n.startswith("second")), names[-1]]
    assert found(network, **options)["skipped"] == wanted
    int8 = Int8Network(network, options=Calibration(**options))
    plan = api.plan(int8, "cpu", attrs=VNNI)
    products = [t for t in plan.tasks if "conv2d" in t.name or "matmul" in t.name]
    inside = sum(t.weight for t in products if "quantized" in t.name)
    assert inside == len(names) - len(wanted)
    assert sum(t.weight for t in products) == len(names)


def test_layers_in_float_have_no_error_until_a_layer_in_int8():
    network = cnn.residual()
    layers = found(network)["layers"]
    first = found(network, skip_layers=("0",))["layers"]
    assert all(10 < layer["sqnr"] < 60 for layer in layers)
    assert first[0]["sqnr"] is None or first[0]["sqnr"] > 100
    assert first[1]["sqnr"] > 20


def test_an_accuracy_budget_puts_only_the_layers_back_that_it_must():
    network = cnn.residual()
    free = found(network)
    assert free["skipped"] == []
    kept = found(network, accuracy_budget=free["error"] * 2)
    assert kept["skipped"] == []
    tight = found(network, accuracy_budget=free["error"] * 0.6)
    assert tight["error"] <= free["error"] * 0.6
    assert 0 < len(tight["skipped"]) < len(free["layers"])


def test_a_budget_that_no_layer_meets_is_refused():
    with pytest.raises(TvmtuneError, match="at most 1e-09, not even"):
        found(cnn.residual(), accuracy_budget=1e-9)


def test_a_source_restores_layers_in_float(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    options = Calibration(skip_layers=("0", "classifier"))
    network = networks.load(tmp_path / "cnn.onnx", dtype="int8", calibration=options)
    calibrated = network.calibrated(samples(network))
    assert networks.reload(calibrated.source).to_onnx() == calibrated.to_onnx()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "minmux"}, "'minmux' is not known.*minmax"),
        ({"global_scale": 0.0}, "global scale must be above 0"),
        ({"accuracy_budget": float("nan")}, "accuracy budget must be above 0"),
        ({"global_scale": 8.0, "method": "entropy"}, "no effect with a global scale"),
        ({"skip_layers": ("stem2",)}, "no layer 'stem2' to skip.*stem"),
        ({"skip_layers": ("99",)}, "no layer '99' to skip: its 7 layers are 0 to 6"),
    ],
)
def test_unsuitable_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        found(cnn.residual(), **options)


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        ("a", "its only layer is 0, or a"),
        ("abc", "its 3 layers are 0 to 2, or a, b, c"),
        ("abcd", "its 4 layers are 0 to 3, or a, b, c..."),
    ],
)
def test_a_layer_that_does_not_exist_is_named_with_those_that_do(names, listed):
    with pytest.raises(UsageError) as raised:
        Calibration(skip_layers=("zzz",)).skipped(list(names), "net")
    assert f"net has no layer 'zzz' to skip: {listed}" in str(raised.value)
    assert ("..." in str(raised.value)) == (len(names) > 3)


def test_a_network_without_layers_has_none_to_skip():
    g = GraphBuilder("pool")
    network = OnnxNetwork(g.model(g.relu(g.input("data", (1, 8, 8, 8)))), name="pool")
    message = "no layer of pool can be computed in int8: omit --dtype int8"
    for options in ({}, {"skip_layers": ("stem",)}):
        with pytest.raises(TvmtuneError, match=message):
            found(network, **options)


def test_skipping_all_layers_is_refused():
    with pytest.raises(TvmtuneError, match="no layer of cnn can be computed in int8 left"):
        found(cnn.residual(), skip_layers=("*",))


def test_options_are_refused_where_they_have_no_effect():
    options = Calibration(global_scale=8.0)
    with pytest.raises(UsageError, match="are for --dtype int8"):
        networks.load("resnet-18", calibration=options)
    with pytest.raises(UsageError, match="need a CPU with dot-product instructions"):
        api.plan(Int8Network(cnn.residual(), options=options), "cpu", attrs={"mcpu": "ivybridge"})


def test_samples_are_read_from_the_files_of_a_directory(tmp_path):
    specs = cnn.residual().inputs
    arrays = [np.full((count, 3, 16, 16), count, "float32") for count in (2, 1)]
    np.save(tmp_path / "b.npy", arrays[1])
    np.savez(tmp_path / "a.npz", data=arrays[0])
    (tmp_path / "notes.txt").write_text("ignored")
    assert np.array_equal(read_samples(tmp_path, specs)["data"], np.concatenate(arrays))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no .npz or .npy files"),
        ({"a.npy": b"no array"}, "is damaged or not an .npy file"),
    ],
)
def test_unsuitable_directories_are_refused(files, message, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_samples(tmp_path, cnn.residual().inputs)


def test_arrays_of_other_shapes_or_names_are_refused(tmp_path):
    specs = cnn.residual().inputs
    np.save(tmp_path / "a.npy", np.zeros((1, 3, 16, 16)))
    np.save(tmp_path / "b.npy", np.zeros((1, 3, 8, 8)))
    with pytest.raises(UsageError, match="do not fit together"):
        read_samples(tmp_path, specs)
    (tmp_path / "b.npy").unlink()
    np.savez(tmp_path / "c.npz", other=np.zeros(1))
    with pytest.raises(UsageError, match="c.npz has the arrays other, and a.npy has data"):
        read_samples(tmp_path, specs)
    with pytest.raises(UsageError, match="the network has the inputs data, data"):
        read_samples(tmp_path, [*specs, *specs])


@pytest.mark.slow
def test_a_library_says_how_it_was_calibrated(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    (tmp_path / "samples").mkdir()
    np.save(tmp_path / "samples" / "one.npy", random_inputs(cnn.residual().inputs, 1)["data"])
    words = ["compile", "cnn.onnx", "--dtype", "int8", "--calibration", "samples"]
    words += ["--calibration-method", "percentile", "--skip-layers", "0,classifier"]
    words += ["--target-attr", "mcpu=cascadelake", "-o", "lib.so"]
    done = tvmtune(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = tvmtune("inspect", "lib.so", cwd=tmp_path).stdout
    assert "percentile, 1 samples (samples); 2 of 7 layers in float; error against float" in shown
    assert "SQNR" in shown
    assert shown.count("int8  ") >= 5


def test_a_wrong_method_is_a_wrong_command_line(tmp_path):
    words = ["tasks", "resnet-18", "--dtype", "int8", "--calibration-method", "kl"]
    done = tvmtune(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "--calibration-method 'kl' is not known" in complaint(done.stderr)
