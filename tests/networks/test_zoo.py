"""The zoo's registry: names, shapes, published sizes, frozen weights."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, shape_inference

from tvmtune import networks
from tvmtune.errors import UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.zoo import ZOO, canonical
from tvmtune.types import Network, TensorSpec

SMALL = [
    "mobilenet",
    "mobilenet-v2",
    "mobilenet-v3-large",
    "mobilenet-v3-small",
    "squeezenet_v1.0",
    "squeezenet_v1.1",
    "densenet-121",
    "efficientnet-b0",
]
"""Networks that are quick to build."""

PARAMETERS = {
    "bert-base": 109_482_240,
    "convnext-tiny": 28_589_128,
    "densenet-121": 7_978_856,
    "efficientnet-b0": 5_288_548,
    "gpt2": 124_439_808,
    "inception_v3": 23_834_568,
    "mobilenet": 4_231_976,
    "mobilenet-v2": 3_504_872,
    "mobilenet-v3-large": 5_483_032,
    "mobilenet-v3-small": 2_542_856,
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "resnet-152": 60_192_808,
    "resnet3d-18": 33_371_472,
    "resnet3d-34": 63_681_104,
    "squeezenet_v1.0": 1_248_424,
    "squeezenet_v1.1": 1_235_496,
    "vgg-11": 132_863_336,
    "vgg-13": 133_047_848,
    "vgg-16": 138_357_544,
    "vgg-19": 143_667_240,
    "vit-b-16": 86_567_656,
}
"""As torchvision's tables have them, but for the first MobileNet (4.23 M in gluon's model zoo) and
resnet3d-34, which no table has. Of bert-base (with the pooler) and gpt2 (with one matrix for embeddings
and classifier) as PyTorch counts those of transformers."""

SHAPES = {
    "inception_v3": (3, 299, 299),
    "resnet3d-18": (3, 16, 112, 112),
    "resnet3d-34": (3, 16, 112, 112),
}

VTA_TASKS = {
    (1, 56, 56, 64, 64, 3, 3, 1, 1, 1, 1),
    (1, 56, 56, 64, 128, 1, 1, 0, 0, 2, 2),
    (1, 56, 56, 64, 128, 3, 3, 1, 1, 2, 2),
    (1, 28, 28, 128, 128, 3, 3, 1, 1, 1, 1),
    (1, 28, 28, 128, 256, 1, 1, 0, 0, 2, 2),
    (1, 28, 28, 128, 256, 3, 3, 1, 1, 2, 2),
    (1, 14, 14, 256, 256, 3, 3, 1, 1, 1, 1),
    (1, 14, 14, 256, 512, 1, 1, 0, 0, 2, 2),
    (1, 14, 14, 256, 512, 3, 3, 1, 1, 2, 2),
    (1, 7, 7, 512, 512, 3, 3, 1, 1, 1, 1),
}
"""(batch, h, w, ci, co, kh, kw, ph, pw, sh, sw) of the 10 tasks in TVM's tutorial for VTA."""


CLASSES = {"resnet3d-18": 400, "resnet3d-34": 400}
"""Of networks without the 1000 of ImageNet."""

TOKENS = {
    "bert-base": (
        ["input_ids", "attention_mask", "token_type_ids"],
        128,
        {"last_hidden_state": (1, 128, 768), "pooler_output": (1, 768)},
    ),
    "gpt2": (["input_ids"], 64, {"logits": (1, 64, 50257)}),
}
"""Of networks that take tokens: inputs, default length, outputs."""

LARGER = ["resnet-101", "resnet-152", "vgg-13", "vgg-16", "vgg-19"]
"""Built by the same code as smaller ones of their families."""

COMPARED = [*LARGER, "bert-base", "gpt2", "vgg-11"]
"""Those, and large ones whose parameters test_zoo_torch.py gives to PyTorch's network one by one."""


def sized(quick: list[str], soak: list[str] | None = None, *, tokens: bool = True) -> list[object]:
    """All networks, as parameters of a test that is slow but for the ``quick`` ones.

    ``tokens``: also those that take tokens.
    """

    def marks(name: str) -> pytest.MarkDecorator | tuple[()]:
        if name in quick:
            return ()
        return pytest.mark.soak if name in (soak or ()) else pytest.mark.slow

    names = [name for name in networks.names() if tokens or name not in TOKENS]
    return [pytest.param(name, marks=marks(name)) for name in names]


@cache
def small(name: str) -> Network:
    assert name in SMALL  # a cache of all networks would be of gigabytes
    return networks.load(name)


def load(name: str) -> Network:
    return small(name) if name in SMALL else networks.load(name)


def model_of(network: Network) -> onnx.ModelProto:
    content = network.to_onnx()
    assert content is not None
    return onnx.load_model_from_string(content)


def convolutions(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    """Each as one of ``VTA_TASKS``, in the order of the graph."""
    graph = shape_inference.infer_shapes(model).graph
    values = {info.name: info.type.tensor_type for info in (*graph.value_info, *graph.input)}
    weights = {weight.name: weight.dims for weight in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type == "Conv":
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            batch, _, height, width = (d.dim_value for d in values[node.input[0]].shape.dim)
            outer, inner, *kernel = weights[node.input[1]]
            window = (*kernel, *attributes["pads"][:2], *attributes["strides"])
            found.append((batch, height, width, inner, outer, *window))
    return found


def test_all_published_networks_are_registered():
    assert networks.names() == sorted(PARAMETERS)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", sized([*SMALL, "resnet-18", "resnet-50", "inception_v3"], COMPARED)
)
def test_parameter_counts_match_the_published_ones(name: str):
    weights = model_of(load(name)).graph.initializer
    trainable = [w for w in weights if w.name.endswith((".weight", ".bias"))]
    assert sum(int(np.prod(w.dims)) for w in trainable) == PARAMETERS[name]


@pytest.mark.sweep
@pytest.mark.parametrize("name", sized([*SMALL, "resnet-18", "inception_v3"], LARGER, tokens=False))
def test_every_network_takes_one_sample_and_gives_raw_logits(name: str):
    network = load(name)
    sample = SHAPES.get(name, (3, 224, 224))
    assert network.inputs == (TensorSpec("data", (1, *sample), "float32"),)
    assert network.outputs == (TensorSpec("logits", (1, CLASSES.get(name, 1000)), "float32"),)
    assert network.source == {"zoo": name, "batch": 1}
    nodes = model_of(network).graph.node
    assert not {node.op_type for node in nodes} & {"Dropout"}
    (last,) = (node for node in nodes if "logits" in node.output)
    assert last.op_type != "Softmax"


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENS)
def test_networks_of_tokens_take_ids_of_the_default_length_within_their_vocabulary(name: str):
    network = networks.load(name)
    inputs, length, outputs = TOKENS[name]
    assert network.inputs == tuple(TensorSpec(key, (1, length), "int64") for key in inputs)
    assert {spec.name: spec.shape for spec in network.outputs} == outputs
    assert {spec.dtype for spec in network.outputs} == {"float32"}
    assert isinstance(network, OnnxNetwork)
    assert network.ranges["input_ids"] == (0, {"bert-base": 30521, "gpt2": 50256}[name])


@pytest.mark.slow
def test_one_shape_sets_the_length_of_all_inputs():
    network = networks.load("bert-base", shapes={"attention_mask": (2, 7)})
    assert {spec.shape for spec in network.inputs} == {(2, 7)}
    assert network.outputs[0].shape == (2, 7, 768)


@pytest.mark.parametrize(
    "name",
    sized(
        ["mobilenet-v2", "squeezenet_v1.1"], [*LARGER, "bert-base", "gpt2", "vgg-11", "vit-b-16"]
    ),
)
def test_hashes_are_the_same_in_another_process(name: str):
    code = (
        f"from tvmtune.networks import load; n = load({name!r});"
        "print(n.structure_hash, n.weights_hash)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    network = load(name)
    assert shown.stdout.split() == [network.structure_hash, network.weights_hash]


@pytest.mark.parametrize(
    ("name", "weight", "values"),
    [
        ("efficientnet-b0", "stem.weight", [-0.013997444, 0.40610126, -0.01908371]),
        ("convnext-tiny", "stage1.block1.mlp1.weight", [0.045582052, 0.10672167, 0.08577509]),
    ],
)
def test_weights_of_later_networks_are_frozen(name: str, weight: str, values: list[float]):
    weights = {w.name: w for w in model_of(load(name)).graph.initializer}
    np.testing.assert_array_equal(
        numpy_helper.to_array(weights[weight]).ravel()[:3], np.float32(values)
    )


def test_weights_are_frozen():
    weights = {w.name: w for w in model_of(load("mobilenet")).graph.initializer}
    stem = numpy_helper.to_array(weights["stem.weight"]).ravel()
    np.testing.assert_array_equal(stem[:3], np.float32([-0.46595132, 0.34889445, -0.43628997]))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("ResNet50", "resnet-50"),
        ("resnet_152", "resnet-152"),
        ("resnet3d18", "resnet3d-18"),
        ("r3d_18", "resnet3d-18"),
        ("vgg16", "vgg-16"),
        ("mobilenetv2", "mobilenet-v2"),
        ("mobilenet_v2", "mobilenet-v2"),
        ("squeezenet", "squeezenet_v1.1"),
        ("squeezenet1.1", "squeezenet_v1.1"),
        ("squeezenet1_1", "squeezenet_v1.1"),
        ("squeezenet-v1.0", "squeezenet_v1.0"),
        ("squeezenet1.0", "squeezenet_v1.0"),
        ("inception-v3", "inception_v3"),
        ("inceptionv3", "inception_v3"),
        ("densenet121", "densenet-121"),
        ("mobilenet_v3_large", "mobilenet-v3-large"),
        ("mobilenetv3", "mobilenet-v3-large"),
        ("efficientnet_b0", "efficientnet-b0"),
        ("vit_b_16", "vit-b-16"),
        ("convnext_tiny", "convnext-tiny"),
        ("bert-base-uncased", "bert-base"),
        ("gpt-2", "gpt2"),
    ],
)
def test_other_spellings_are_understood(alias: str, name: str):
    assert canonical(alias) == name


def test_no_spelling_means_two_networks():
    for name, entry in ZOO.items():
        assert {canonical(spelling) for spelling in (name, *entry.aliases)} == {name}


@pytest.mark.slow
def test_the_convolutions_of_resnet_18_after_the_first_are_those_of_the_vta_tutorial():
    _, *rest = convolutions(model_of(networks.load("resnet-18")))
    assert set(rest) == VTA_TASKS


@pytest.mark.parametrize("name", ["mobilenet", "squeezenet_v1.0"])
def test_a_batch_is_a_batch_of_independent_images(name: str):
    pair = networks.load(name, batch=2, shapes={"data": (2, 3, 40, 48)})
    single = networks.load(name, shapes={"data": (1, 3, 40, 48)})
    images = random_inputs(pair.inputs, seed=0)["data"]
    together = pair.reference({"data": images})[0]
    alone = [single.reference({"data": images[i : i + 1]})[0] for i in range(2)]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-4)


@pytest.mark.sweep
@pytest.mark.parametrize("name", SMALL)
def test_the_batch_changes_the_structure_but_not_the_weights(name: str):
    one, two = load(name), networks.load(name, batch=2)
    assert one.structure_hash != two.structure_hash
    assert one.weights_hash == two.weights_hash


@pytest.mark.parametrize(
    ("shapes", "cause"),
    [
        ({"image": (1, 3, 224, 224)}, "no input 'image'"),
        ({"data": (3, 224, 224)}, "has 3 dimensions"),
        ({"data": (1, 1, 224, 224)}, "dimension 1 is fixed at 3"),
        ({"data": (1, 3, 0, 224)}, "at least 1"),
    ],
)
def test_an_impossible_shape_is_refused(shapes: dict[str, tuple[int, ...]], cause: str):
    with pytest.raises(UsageError, match=cause):
        networks.load("mobilenet", shapes=shapes)


@pytest.mark.parametrize(
    ("name", "shape", "cause"),
    [
        ("inception_v3", (1, 3, 74, 299), "too small: only 2x17 is left of it at layer"),
        ("squeezenet_v1.1", (1, 3, 16, 16), "too small: only 1x1 is left of it at layer 'pool3'"),
        ("vgg-11", (1, 3, 192, 224), "cannot take images of 192x224.*multiples of 224"),
        ("vgg-11", (1, 3, 256, 256), "cannot take images of 256x256.*multiples of 224"),
        ("resnet3d-18", (1, 3, 112, 112), "has 4 dimensions, but input 'data'.* has 5"),
        ("vit-b-16", (1, 3, 224, 230), "cannot take images of 224x230.*multiples of 16"),
        ("convnext-tiny", (1, 3, 16, 16), "too small: only 1x1 is left of it at layer"),
        ("bert-base", (1, 513), "cannot take 513 tokens.* 512 positions"),
        ("gpt2", (1, 1025), "cannot take 1025 tokens.* 1024 positions"),
        ("gpt2", (1, 8, 1), "has 3 dimensions, but input 'input_ids' of gpt2 has 2"),
    ],
)
def test_an_unsuitable_input_size_is_refused_with_the_cause(
    name: str, shape: tuple[int, ...], cause: str
):
    with pytest.raises(UsageError, match=cause):
        networks.load(name, shapes={ZOO[name].inputs[0]: shape})


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_building_vgg_takes_less_than_three_times_its_weights_memory():
    code = (  # not getrusage: its peak is that of the parent process, where that is higher
        "import pathlib, re; from tvmtune.networks import load; load('vgg-16');"
        "status = pathlib.Path('/proc/self/status').read_text();"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', status)[1])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(shown.stdout) * 1024 < 3 * 4 * PARAMETERS["vgg-16"]
