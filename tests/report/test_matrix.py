"""Results of ``bench --json`` side by side."""

from __future__ import annotations

import json

import pytest

from report.sample import HOSTILE
from tvmtune.errors import TvmtuneError
from tvmtune.report import matrix


def bench(path, network="resnet-18", *, model="some CPU", when=None, **runs):
    record = {
        "runs": [
            {"runtime": name, "version": "1.0", "threads": 2, "device": "cpu", "median_ms": ms}
            for name, ms in runs.items()
        ],
        "network": {"name": network, "source": {"zoo": network, "batch": 1}},
        "device": {"backend": "cpu", "model": model, "runtime": "cpu"},
        "host": {"cpu": model, "os": "Debian"},
        "notes": ["busy"],
        "background_load": 0.25,
        **({} if when is None else {"time": when}),
    }
    path.write_text(json.dumps(record))
    return matrix.read(path)


@pytest.fixture
def made(tmp_path):
    return matrix.Matrix(
        [
            bench(tmp_path / "a.json", tvmtune=10.0, onnxruntime=15.5, when=1.7e9),
            bench(tmp_path / "b.json", "vgg-16", tvmtune=66.25, when=1.7e9),
            bench(tmp_path / "c.json", tvmtune=30.0, model="a board", when=1.7e9),
        ]
    )


def cells(markdown, first):
    row = next(line for line in markdown.splitlines() if line.startswith(f"| {first}"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_networks_devices_runtimes(made):
    assert made.networks == ["resnet-18", "vgg-16"]
    text = made.markdown()
    assert cells(text, "some CPU, 2 threads | tvmtune")[3:] == ["**10.000**", "**66.250**"]
    assert cells(text, "some CPU, 2 threads | onnxruntime")[3:] == ["15.500", ""]
    assert cells(text, "a board")[3:] == ["**30.000**", ""]
    measured = cells(text, "a.json")
    assert measured[1:] == [
        "resnet-18",
        "tvmtune 1.0, onnxruntime 1.0",
        "some CPU, Debian",
        "2023-11-14 22:13 UTC",
        "25%",
        "busy",
    ]


def test_published_numbers_are_marked_and_have_their_source(made):
    text = made.markdown()
    before, _, after = text.partition("## Published references")
    assert "RK3399" not in before, "never among the measured"
    assert "Not measured here" in after and "https://tvm.apache.org/" in after
    assert "335.9" in after and "1,285.9" in after and "621.8" in after
    bars = made.charts()["bars-0-resnet-18"]["data"]["values"]
    published = {v["label"]: v["ms"] for v in bars if v["runtime"] == matrix.PUBLISHED}
    assert published["RK3399 CPU: TVM"] == 161.2
    assert published["Pynq with VTA: TVM, tutorial"] == 621.8
    assert "Vega FE: TVM" not in published, "it has no number for resnet-18"


def test_the_newest_result_counts(tmp_path):
    made = matrix.Matrix(
        [
            bench(tmp_path / "new.json", tvmtune=9.0, when=2e9),
            bench(tmp_path / "old.json", tvmtune=8.0, when=1e9),
        ]
    )
    assert [r.ms for r in made.rows] == [9.0] and made.older == 1
    assert "1 older result" in made.markdown()


def test_batch_dtype_and_modelled_times(tmp_path):
    path = tmp_path / "a.json"
    bench(path, tvmtune=5.0)
    record = json.loads(path.read_text())
    record["network"]["source"] |= {"batch": 4, "dtype": "int8"}
    record["runs"][0]["modelled_ms"] = 2.5
    path.write_text(json.dumps(record))
    made = matrix.Matrix([matrix.read(path)])
    assert made.networks == ["resnet-18 int8 batch 4"]
    assert "**2.500 (modeled)**" in made.markdown()


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        "{}",
        '{"runs": [], "network": {"name": "x"}, "device": {}}',
        '{"runs": [{"runtime": "a"}], "network": {"name": "x"}, "device": {}}',
        '{"runs": [5], "network": {"name": "x"}, "device": {}}',
        '{"runs": [{"runtime": "a", "version": "1", "median_ms": -1}], "network": {"name": "x"}, '
        '"device": {}}',
        '{"runs": [{"runtime": "a", "version": "1", "median_ms": 1}], "network": {}, "device": {}}',
    ],
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(TvmtuneError, match="is not the output of tvmtune bench --json"):
        matrix.read(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(TvmtuneError, match="cannot read"):
        matrix.read(tmp_path / "none.json")


def test_markdown_shows_hostile_names_as_they_are(tmp_path):
    made = matrix.Matrix([bench(tmp_path / "a.json", HOSTILE + "|\n", tvmtune=1.0)])
    text = made.markdown()
    assert "<script" not in text and "<img" not in text
    assert len({line.count(" | ") for line in text.split("\n\n")[2].splitlines()}) == 1
