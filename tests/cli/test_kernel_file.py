"""From a kernel file to a tuned, checked library of one operator, and its errors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cli.commands import complaint, tvmtune
from tvmtune.cli import main

RGB2YUV = Path(__file__).parents[2] / "examples" / "rgb2yuv.py"
SMALL = ("--arg", "w=96", "--arg", "h=32")


@pytest.mark.slow
def test_compile_exports_the_operator_and_run_computes_it(tmp_path):
    done = tvmtune("compile", RGB2YUV, *SMALL, "-o", "op.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    image = np.random.RandomState(0).rand(32, 96, 3).astype("float32")
    np.savez(tmp_path / "x.npz", rgb=image)
    done = tvmtune("run", "op.so", "--input", "x.npz", "--output", "y.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    y = np.load(tmp_path / "y.npz")["yuv"]
    want = (
        image
        @ np.array([[0.257, 0.504, 0.098], [-0.148, -0.291, 0.439], [0.439, -0.368, -0.071]]).T
    )
    np.testing.assert_allclose(y, want, atol=1e-6)


@pytest.mark.slow
def test_tune_times_the_operator_beside_its_default_schedule_its_plain_loops_and_numpy(tmp_path):
    done = tvmtune("-v", "tune", RGB2YUV, *SMALL, "--trials", 12, "-o", "op.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^│ (tvmtune|untuned|as written|numpy) ", done.stdout, re.MULTILINE)
    assert rows == ["tvmtune", "untuned", "as written", "numpy"]
    assert "the output is right" in done.stdout
    assert (tmp_path / "rgb2yuv-w96-h32-NHWC-B1-cpu.json").exists()
    # every trial of the template lists what it sampled
    assert re.search(r" template 0x\w+: [\d.]+ ms yuv\.1=\d+x\d+x\d+ yuv\.0=\d+x\d+", done.stderr)


@pytest.mark.slow
def test_tasks_prints_knobs_and_computation(tmp_path):
    done = tvmtune("tasks", RGB2YUV, *SMALL, "--space", "--dag", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rgb = PLACEHOLDER [32, 96, 3] float32" in done.stdout
    assert re.search(r"^  template: [\d,]+ points$", done.stdout, re.MULTILINE)
    assert re.search(r"yuv\.1 +tile +\d+  96 into 3, innermost at most 64", done.stdout)


HEAD = RGB2YUV.read_text()
REFERENCE = "return rgb @ np.array(YUV, rgb.dtype).T"
TEMPLATE = 'sch.get_loops(sch.get_sblock("yuv"))'


@pytest.mark.parametrize("name", ["tune", "compile"])
@pytest.mark.parametrize(
    ("old", "new", "args", "code", "message"),
    [
        ("import tvmtune", "import tvmtunes", (), 1, "op.py, line 9: ModuleNotFoundError"),
        ("@tvmtune.operator", "", (), 1, "op.py declares no operator, so it was not run"),
        (HEAD, "x = 1", (), 1, "op.py declares no operator"),
        (REFERENCE, "return rgb", (), 1, "'rgb2yuv' of .*op.py and its reference disagree"),
        (REFERENCE, "return rgb[0]", (), 1, "the reference of 'rgb2yuv' in op.py gives the shapes"),
        (REFERENCE, "return rgb / none", (), 1, "op.py, line 3.: NameError"),
        (
            TEMPLATE,
            "sch.get_loops(sch.get_sblock('vuy'))",
            (),
            1,
            "template of 'rgb2yuv' for 'cpu'",
        ),
        (TEMPLATE, "1 / 0", (), 1, "op.py, line 3.: ZeroDivisionError"),
        ("", "", ("--arg", "width=3"), 2, "--arg width: .* no such argument. Known: h, w"),
        ("", "", ("--arg", "w=wide"), 2, "--arg w=wide: must be of type int"),
        ("", "", ("--arg", "w"), 2, "--arg takes K=V, not 'w'"),
        ("", "", ("--arg", "w=1", "--arg", "w=2"), 2, "--arg w is given twice"),
        ("", "", ("--batch", "2"), 2, "give --arg NAME=VALUE instead of --batch"),
        ("", "", ("--shape", "rgb:1x2x3"), 2, "instead of --shape"),
        ("", "", ("--dtype", "float16"), 2, "is for the zoo and ONNX files"),
        ("", "", ("--network", "mobilenet"), 2, "two networks are given"),
    ],
)
def test_errors_in_kernel_files_yield_one_message(
    tmp_path, monkeypatch, capsys, name, old, new, args, code, message
):
    assert old in HEAD
    (tmp_path / "op.py").write_text(HEAD.replace(old, new) if old else HEAD)
    monkeypatch.chdir(tmp_path)
    small = () if "--arg" in args else SMALL
    with pytest.raises(SystemExit) as ended:
        main([name, "op.py", *small, *args])
    assert ended.value.code == code
    assert re.search(message, complaint(capsys.readouterr().err))
    assert [p.name for p in tmp_path.iterdir()] == ["op.py"]


def test_an_input_of_another_name_rank_or_dtype_is_rejected_before_tuning(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    image = np.zeros((32, 96, 3), "float32")
    for arrays, message in (
        ({"bgr": image}, "x.npz lacks rgb and has the"),
        ({"rgb": image[0]}, "'rgb' is 96x3 float32, but the network takes rgb: 32x96x3 float32"),
        ({"rgb": image.astype("float64")}, "'rgb' is 32x96x3 float64"),
    ):
        np.savez(tmp_path / "x.npz", **arrays)
        with pytest.raises(SystemExit) as ended:
            main(["tune", str(RGB2YUV), *SMALL, "--input", "x.npz"])
        assert ended.value.code == 2
        stderr = capsys.readouterr().err
        assert message in stderr
        assert len(stderr.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]
