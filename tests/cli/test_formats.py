"""Files of other frameworks from end to end: tune, compare with the framework, run, and errors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cli.commands import complaint, tvmtune
from tvmtune import load
from tvmtune.cli import main
from tvmtune.networks.inputs import random_inputs


@pytest.fixture
def pt2(tmp_path):
    torch = pytest.importorskip("torch")
    from networks import torch_models

    program = torch.export.export(torch_models.TinyCnn().eval(), (torch_models.image(),))
    torch.export.save(program, tmp_path / "net.pt2")
    return "net.pt2"


@pytest.fixture
def tflite(tmp_path):
    pytest.importorskip("tflite")
    pytest.importorskip("ai_edge_litert")
    from networks import tflite_models

    (tmp_path / "net.tflite").write_bytes(tflite_models.tiny_cnn())
    return "net.tflite"


@pytest.mark.parametrize(
    ("form", "peer"),
    [
        pytest.param("pt2", "torch", marks=pytest.mark.soak),
        pytest.param("tflite", "litert", marks=pytest.mark.slow),
    ],
)
def test_a_network_of_another_framework_is_tuned_and_compared_with_it(
    tmp_path, request, form, peer
):
    path = request.getfixturevalue(form)
    pytest.importorskip("ai_edge_litert" if peer == "litert" else peer)
    few = ("--repeat", 3)  # only correctness matters, not speed
    words = ("tune", path, "--trials", 4, "--vs", peer, "-o", "net.so")
    done = tvmtune(*words, *few, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the output is right" in done.stdout
    (difference,) = re.findall(rf"^│ {peer} .* │ +([\d.e-]+) │$", done.stdout, re.MULTILINE)
    assert float(difference) < 1e-4
    assert tvmtune("bench", "net.so", "--check", *few, cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_a_pytorch_program_keeps_its_inputs_and_outputs(tmp_path, pt2):
    done = tvmtune("compile", pt2, "-o", "net.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    network = load(str(tmp_path / pt2))
    inputs = random_inputs(network.inputs, 7)
    np.savez(tmp_path / "x.npz", **inputs)
    done = tvmtune("run", "net.so", "--input", "x.npz", "--output", "y.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    y = np.load(tmp_path / "y.npz")[network.outputs[0].name]
    (want,) = network.reference(inputs)
    np.testing.assert_allclose(y, want, atol=1e-4 * np.abs(want).max())


def error_of(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["compile", *words])
    assert ended.value.code in (1, 2)
    return complaint(capsys.readouterr().err)


@pytest.mark.slow
def test_open_dimensions_of_a_program_must_be_bound(tmp_path, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    open_size = {"x": {2: torch.export.Dim("height", min=8, max=64)}}

    class Pool(torch.nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    program = torch.export.export(
        Pool().eval(), (torch.randn(1, 3, 32, 32),), dynamic_shapes=open_size
    )
    torch.export.save(program, "open.pt2")
    message = error_of(capsys, "open.pt2")
    assert "input 'x' of open.pt2 has dynamic dimensions" in message
    assert "--shape x:" in message
    with pytest.raises(SystemExit) as ended:
        main(["compile", "open.pt2", "--shape", "x:1x3x16x32"])
    assert ended.value.code == 0, capsys.readouterr().err


def test_unsound_scales_are_rejected_in_one_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tflite")
    pytest.importorskip("ai_edge_litert")
    from networks.tflite_models import QuantizedBuilder

    monkeypatch.chdir(tmp_path)
    g = QuantizedBuilder("int8")
    content = g.content(g.apply("TANH", [g.data((1, 4))], (1, 4), scale=0.0))
    (tmp_path / "quantized.tflite").write_bytes(content)
    message = error_of(capsys, "quantized.tflite")
    assert "quantized.tflite is int8 with the scale 0.0, which must be positive" in message
