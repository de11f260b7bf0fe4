"""Loading by name and by path, and messages about names and files that do not load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from models import one_node, tiny_cnn
from tvmtune import networks
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.registry import FileFormat
from tvmtune.networks.zoo import canonical


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_cnn(), path)
    return path


def message(error: type[TvmtuneError], name: object, **options: object) -> str:
    """The message that loading ``name`` fails with: one line, short enough to be read."""
    with pytest.raises(TvmtuneError) as raised:
        networks.load(str(name), **options)
    assert raised.type is error
    text = str(raised.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


def test_names_lists_the_zoo_without_importing_onnx_or_tvm():
    code = (
        "import sys; from tvmtune.networks import names; print(names());"
        "assert not {'onnx', 'tvm', 'numpy'} & set(sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == str(networks.names())
    assert {"mobilenet", "resnet-18"} <= set(networks.names())


@pytest.mark.parametrize("alias", ["resnet-18", "resnet18", "resnet_18", "ResNet-18"])
def test_a_network_of_the_zoo_has_several_spellings(alias: str):
    assert canonical(alias) == "resnet-18"


@pytest.mark.parametrize("alias", ["mobilenet", "MobileNet", "mobilenet-v1", "mobilenetv1"])
def test_mobilenet_means_version_1(alias: str):
    assert canonical(alias) == "mobilenet"


@pytest.mark.parametrize(
    ("name", "suggested"), [("resnet-81", "resnet-18"), ("mobilnet", "mobilenet")]
)
def test_an_unknown_name_suggests_the_nearest(name: str, suggested: str):
    text = message(UsageError, name)
    assert name in text
    assert suggested in text


def test_a_version_number_is_not_a_file_suffix():
    assert "neither a network of the zoo nor a file" in message(UsageError, "squeezenext1.1")


def test_a_file_is_loaded_by_its_path_and_named_by_its_stem(file: Path):
    network = networks.load(str(file))
    assert network.name == "tiny"
    assert network.source == {"file": str(file), "batch": 1}
    assert [str(spec) for spec in network.inputs] == ["data: 1x3x32x32 float32"]
    assert [str(spec) for spec in network.outputs] == ["logits: 1x10 float32"]


def test_a_path_is_a_file_even_if_the_zoo_has_the_name(file: Path, monkeypatch: pytest.MonkeyPatch):
    assert networks.load(file).name == "tiny"
    monkeypatch.chdir(file.parent)
    with pytest.raises(UsageError):
        networks.load(Path("resnet-18"))


def test_a_name_that_ends_as_files_do_is_a_file(file: Path, monkeypatch: pytest.MonkeyPatch):
    """Without its dot, ``g.pt2`` would be a spelling of gpt2."""
    monkeypatch.chdir(file.parent)
    with pytest.raises(UsageError, match=r"g\.pt2 does not exist"):
        networks.load("g.pt2")
    file.rename("resnet18.onnx")
    assert networks.load("resnet18.onnx").source["file"].endswith("resnet18.onnx")


def test_a_file_without_suffix_or_separator_is_found(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(file.parent)
    file.rename(file.with_suffix(""))
    assert networks.load("tiny").source["file"] == str(file.with_suffix(""))


def test_a_network_is_reloaded_from_its_source(tmp_path: Path):
    path = tmp_path / "open.onnx"
    onnx.save(one_node("Relu", shape=("n", "width")), path)
    first = networks.load(str(path), batch=4, shapes={"x": (4, 7)})
    again = networks.reload(first.source)
    assert again.inputs == first.inputs
    assert again.structure_hash == first.structure_hash


def test_the_batch_is_at_least_one():
    assert "at least 1, not 0" in message(UsageError, "resnet-18", batch=0)


def test_a_missing_file_suggests_similar_files(file: Path):
    text = message(UsageError, file.with_name("tinny.onnx"))
    assert "does not exist" in text
    assert str(file) in text


def test_a_missing_file_without_similar_files_is_named(tmp_path: Path):
    assert f"{tmp_path}/no/net.onnx does not exist" in message(UsageError, tmp_path / "no/net.onnx")


def test_a_directory_is_refused(tmp_path: Path):
    assert "is a directory" in message(UsageError, tmp_path)


def test_an_empty_file_is_refused(tmp_path: Path):
    path = tmp_path / "empty.onnx"
    path.touch()
    assert f"{path} is empty" in message(TvmtuneError, path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(file: Path):
    file.chmod(0)
    assert f"cannot read {file}: Permission denied" in message(TvmtuneError, file)


@pytest.mark.parametrize("kept", [0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused_wherever_it_ends(file: Path, kept: float):
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept)])
    assert f"{file} is damaged or not an ONNX file" in message(TvmtuneError, file)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"import torch\n" * 40, "text"),
        (b"PK\x03\x04" + bytes(200), "PyTorch checkpoint"),
        (b"\x80\x02}q\x00", "pickle"),
        (bytes(4) + b"TFL3" + bytes(100), "TFLite"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\x7fELF" + bytes(100), "shared library"),
        (bytes(range(256)), "damaged"),
    ],
)
def test_other_kinds_of_files_are_recognized(tmp_path: Path, content: bytes, kind: str):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    text = message(TvmtuneError, path)
    assert str(path) in text
    assert kind in text


def test_external_weights_are_loaded(tmp_path: Path):
    path = tmp_path / "external.onnx"
    onnx.save(tiny_cnn(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    network = networks.load(str(path))
    onnx.save(tiny_cnn(), tmp_path / "internal.onnx")
    internal = networks.load(str(tmp_path / "internal.onnx"))
    assert network.weights_hash == internal.weights_hash
    x = {"data": np.ones((1, 3, 32, 32), np.float32)}
    np.testing.assert_array_equal(network.reference(x)[0], internal.reference(x)[0])


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_bad_external_file_is_named(tmp_path: Path, damage: str):
    path = tmp_path / "external.onnx"
    onnx.save(tiny_cnn(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    weights = tmp_path / "w.bin"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:1000])
    text = message(TvmtuneError, path)
    assert str(path) in text
    if damage == "missing":
        assert "there is no file 'w.bin'; put that file beside the model" in text


def test_an_operator_unknown_to_onnx_is_named_with_its_node(tmp_path: Path):
    path = tmp_path / "odd.onnx"
    onnx.save(one_node("Frobnicate"), path)
    assert "node 'the_node' (Frobnicate, opset 17)" in message(TvmtuneError, path)


def test_an_invalid_node_is_named(tmp_path: Path):
    path = tmp_path / "odd.onnx"
    onnx.save(one_node("Relu", alpha=1.0), path)
    text = message(TvmtuneError, path)
    assert "the_node" in text
    assert "alpha" in text


def test_a_new_format_takes_a_line_in_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def read(path: Path, **options: object) -> tuple[str, dict[str, object]]:
        return path.read_text(), options

    monkeypatch.setitem(sys.modules, "tvmtune.networks.toy", SimpleNamespace(read=read))
    monkeypatch.setitem(networks.FORMATS, ".toy", FileFormat("toy"))
    path = tmp_path / "net.toy"
    path.write_text("content")
    content, options = networks.load(str(path), batch=2)
    assert content == "content"
    assert options == {
        "label": str(path),
        "source": {"file": str(path), "batch": 2},
        "batch": 2,
        "shapes": None,
    }
    assert ".toy" in message(UsageError, "unknown-network")


@pytest.mark.parametrize("dtype", list(networks.DTYPES))
def test_every_dtype_is_recorded_in_the_source(dtype: str, file: Path):
    network = networks.load(str(file), dtype=dtype)
    assert network.source.get("dtype", "float32") == dtype
