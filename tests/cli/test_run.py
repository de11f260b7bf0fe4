"""``tvmtune run``: inputs from a file or from a seed, outputs into a file."""

from __future__ import annotations

import os

import numpy as np
import pytest
from click.testing import CliRunner

from libraries import make_library
from models import tiny_encoder
from tvmtune import networks
from tvmtune.cli import run as run_module
from tvmtune.errors import UsageError
from tvmtune.networks.inputs import random_inputs

os.environ.setdefault("TVM_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return make_library(tiny_encoder(), tmp_path_factory.mktemp("run"), threads=1, check=False)


@pytest.fixture(scope="module")
def network(library):
    return networks.load(str(library.with_name("model.onnx")))


def run(*args: object):
    return CliRunner().invoke(run_module.command, [*map(str, args)])


@pytest.mark.slow
def test_outputs_are_written_under_their_names(library, network, tmp_path):
    inputs = random_inputs(network.inputs, 3)
    np.savez(tmp_path / "x.npz", **inputs)
    result = run(library, "--input", tmp_path / "x.npz", "--output", tmp_path / "y")
    assert result.exit_code == 0, result.exception
    with np.load(tmp_path / "y") as written:
        assert written.files == ["hidden", "pooled"]
        for name, want in zip(written.files, network.reference(inputs), strict=True):
            assert np.allclose(written[name], want, atol=1e-5)
    assert result.output.splitlines()[0].startswith("hidden: 1x8x16 float32: mean ")


@pytest.mark.slow
def test_a_seed_determines_the_inputs(library, network, tmp_path):
    np.savez(tmp_path / "x.npz", **random_inputs(network.inputs, 3))
    from_file = run(library, "--input", tmp_path / "x.npz").output
    assert run(library, "--seed", 3).output == from_file
    assert run(library, "--seed", 4).output != from_file


@pytest.mark.slow
def test_invalid_inputs_and_outputs_are_rejected(library, tmp_path):
    def error(*args: object) -> BaseException:
        return run(library, *args).exception

    np.savez(tmp_path / "x.npz", ids=np.zeros((1, 8), "int64"))
    assert "lacks mask" in str(error("--input", tmp_path / "x.npz"))
    assert type(error("--input", tmp_path / "none.npz")) is UsageError
    assert type(error("--output", tmp_path / "none" / "y.npz")) is UsageError
    assert "is a directory" in str(error("--output", tmp_path))
    assert "no tracker answers" in str(error("--remote", "board@127.0.0.1:1"))
