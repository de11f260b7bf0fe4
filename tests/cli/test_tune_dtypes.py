"""``tvmtune tune --dtype auto``: a library for each dtype, side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from cli.commands import complaint, tvmtune
from tvmtune.dot_instructions import for_bfloat16
from tvmtune.networks.zoo.graph_builder import GraphBuilder

DOCS = Path(__file__).parents[2] / "docs" / "json.md"
MALI = ("--target", "mali", "--target-attr", "board=rk3399", "--dry-run")
KERNEL = Path(__file__).parents[2] / "examples" / "rgb2yuv.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    g = GraphBuilder("tiny", seed=0)  # few kernels: each is compiled six times
    x = g.relu(g.conv_bn(g.input("data", (1, 3, 16, 16)), "stem", 16, 3, pad=1))
    x = g.relu(g.conv_bn(x, "second", 32, 3, pad=1))
    x = g.global_average_pool(x, "average")
    model = g.model(g.dense(x, "classifier", 10, output="logits"))
    onnx.save(model, tmp_path / "tiny.onnx")
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    images = np.random.default_rng(0).random((3, *shape[1:]), dtype=np.float32)
    np.savez(tmp_path / "images.npz", **{model.graph.input[0].name: images})
    return tmp_path


@pytest.mark.slow
def test_every_dtype_is_tuned_and_compared(folder):
    done = tvmtune(
        *("tune", "tiny.onnx", "--dtype", "auto", "--trials", 2, "--repeat", 2),
        *("--calibration", "images.npz", "--log", "log.json", "-o", "lib.so", "--json"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    target = document["runs"]["float32"]["device"]["target"]
    names = ["float32", *["bfloat16"] * bool(for_bfloat16(target)), "int8"]
    assert list(document["runs"]) == names
    compared = document["comparison"]
    assert [each["dtype"] for each in compared["dtypes"]] == names
    assert (compared["samples"], compared["random_inputs"]) == (3, False)
    for name, run, row in zip(names, document["runs"].values(), compared["dtypes"], strict=True):
        suffix = "" if name == "float32" else f"-{name}"
        assert (run["log"], run["output"]) == (f"log{suffix}.json", f"lib{suffix}.so")
        assert row["library"] == run["output"]
        assert row["bytes"] == (folder / row["library"]).stat().st_size
        assert row["median_ms"] > 0
        assert run["tuning"]["trials"] == 2
    errors = {row["dtype"]: row["error"] for row in compared["dtypes"]}
    assert errors["float32"] <= 1e-4 < errors["int8"] < 1
    example = re.search(r"```json\n(\{\n  \"comparison.*?)```", DOCS.read_text(), re.DOTALL)
    assert example
    documented = json.loads(example[1])["comparison"]
    assert set(documented) == set(compared)
    assert set(documented["dtypes"][0]) == set(compared["dtypes"][0])


@pytest.mark.slow
def test_a_table_shows_the_dtypes(folder):
    done = tvmtune(
        *("tune", "tiny.onnx", "--dtype", "auto", "--trials", 1, "--repeat", 2), cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"│ int8 +│ +[\d.]+ │ +[\d.]+x │", done.stdout)
    assert re.search(
        r"^fastest: \w+ \(tiny(-\w+)?\.so\); all \d libraries are kept", done.stdout, re.M
    )
    assert "16 random inputs (--input and --calibration take real ones)" in done.stdout
    assert {path.name for path in folder.glob("*.so")} >= {"tiny.so", "tiny-int8.so"}


@pytest.mark.slow
def test_a_dry_run_describes_each_dtype(folder):
    done = tvmtune("tune", "tiny.onnx", "--dtype", "auto", "--dry-run", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["comparison"] is None
    assert document["runs"]["int8"]["output"] == "tiny-int8.so"
    assert not [*folder.glob("*.so")]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("compile", "tiny.onnx"), "--dtype auto is for tvmtune tune, which times the libraries"),
        (("tasks", "tiny.onnx"), "--dtype auto is for tvmtune tune"),
        (("tune", "resnet-18", "--target", "vta"), "does not compute on the target vta"),
        (("tune", KERNEL), "nothing to compare with float32"),
        (("tune", "tiny.onnx", "--calibration", "none.npz"), "none.npz"),
        (("tune", "tiny.onnx", "--skip-layers", "none"), "has no layer 'none' to skip"),
        (("tune", "tiny.onnx", "-o", "none/lib.so"), "-o none/lib.so: there is no directory none"),
        (
            ("tune", "tiny.onnx", *MALI, "--skip-layers", "0"),
            "--skip-layers has no effect: mali does not compute in int8",
        ),
    ],
)
def test_auto_is_refused_where_nothing_can_be_compared(
    folder, args, message, command_line, monkeypatch
):
    monkeypatch.chdir(folder)
    code, _, stderr = command_line(*map(str, args), "--dtype", "auto")
    assert code == 2
    assert message in complaint(stderr)
