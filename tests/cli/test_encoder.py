"""A BERT-like encoder with int64 ids, exported by PyTorch to ONNX, is tuned and correct."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cli.commands import tvmtune

VOCABULARY, LENGTH, WIDTH = 2000, 48, 128


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from torch import nn

    class Bert(nn.Module):
        """Word, position and type embeddings, two layers of attention, a pooler."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(VOCABULARY, WIDTH)
            self.places = nn.Embedding(LENGTH, WIDTH)
            self.kinds = nn.Embedding(2, WIDTH)
            self.norm = nn.LayerNorm(WIDTH)
            layer = nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, activation="gelu", batch_first=True
            )
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.pooler = nn.Linear(WIDTH, WIDTH)

        def forward(self, ids, kinds, mask):
            places = torch.arange(ids.shape[1], device=ids.device)
            x = self.norm(self.words(ids) + self.places(places) + self.kinds(kinds))
            x = self.layers(x, src_key_padding_mask=mask == 0)
            return x, torch.tanh(self.pooler(x[:, 0]))

    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    ids = torch.ones(1, LENGTH, dtype=torch.int64)
    torch.onnx.export(
        Bert().eval(),
        (ids, ids * 0, ids),
        path,
        input_names=["ids", "kinds", "mask"],
        output_names=["hidden", "pooled"],
        dynamo=True,
        external_data=False,
    )
    rng = np.random.RandomState(0)
    mask = np.ones((1, LENGTH), "int64")
    mask[:, 40:] = 0
    np.savez(
        path.with_suffix(".npz"),
        ids=rng.randint(0, VOCABULARY, (1, LENGTH)),
        kinds=np.repeat([[0, 1]], LENGTH // 2, 1).reshape(1, LENGTH),
        mask=mask,
    )
    return path


@pytest.mark.parametrize(
    ("dtype", "trials"),
    [
        pytest.param("float32", 10, marks=pytest.mark.soak),
        pytest.param("float16", 10, marks=pytest.mark.slow),
    ],
)
def test_a_tuned_encoder_is_correct_for_ids_of_the_whole_vocabulary(
    encoder, dtype, trials, tmp_path
):
    done = tvmtune(
        *("tune", encoder, "--dtype", dtype, "--trials", trials, "--tasks", "top5", "--repeat", 3),
        *("--input", encoder.with_suffix(".npz"), "--vs", "onnxruntime", "-o", "bert.so"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "the output is right" in done.stdout
    assert "the output for the given inputs is right" in done.stdout
    assert re.search(r"^│ onnxruntime ", done.stdout, re.MULTILINE)
