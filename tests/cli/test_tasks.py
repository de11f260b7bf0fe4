"""``tvmtune tasks`` lists the tasks of a network."""

import json

import onnx
import pytest
from click.testing import CliRunner

from models import tiny_cnn
from tvmtune.cli import group


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "tiny.onnx"
    onnx.save(tiny_cnn(), path)
    return str(path)


def output(*words: str) -> str:
    result = CliRunner().invoke(group, ["tasks", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_json_has_the_documented_fields(network):
    listing = json.loads(output("--network", network, "--json"))
    assert {"network", "layout", "device", "tasks"} <= set(listing)
    for index, task in enumerate(listing["tasks"]):
        assert task["index"] == index
        assert {"name", "weight", "gflop", "workload_key", "anchor_key", "args"} <= set(task)
        assert task["implementations"][0]["name"] == "direct"


def test_the_table_has_a_row_for_each_task_and_shows_the_threads(network):
    listing = json.loads(output("--network", network, "--json"))
    table = output("--network", network)
    assert f"{listing['device']['threads']} threads" in table
    assert all(task["workload_key"] in table for task in listing["tasks"])


def test_a_dynamic_batch_is_noted_on_stderr(tmp_path):
    model = tiny_cnn()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(model, tmp_path / "open.onnx")
    path = str(tmp_path / "open.onnx")
    result = CliRunner().invoke(group, ["tasks", path], catch_exceptions=False)
    assert result.stderr.splitlines() == ["note: dynamic batch bound to 1 (--batch N)"]
    assert CliRunner().invoke(group, ["tasks", path, "--batch", "2"]).stderr == ""


def test_the_layout_changes_the_kernels_but_not_the_network(network):
    inside = [
        json.loads(output("--network", network, "--json", "--layout", layout))
        for layout in ("NHWC", "NCHW")
    ]
    keys = [{t["workload_key"] for t in listing["tasks"]} for listing in inside]
    assert keys[0] != keys[1]
    assert [listing["layout"] for listing in inside] == ["NHWC", "NCHW"]


def test_the_json_has_spaces_and_computations_on_request(network):
    plain = json.loads(output("--network", network, "--json"))
    assert all("dag" not in task for task in plain["tasks"])
    listing = json.loads(
        output("--network", network, "--json", "--dag", "--space", "--tasks", "*conv2d*")
    )
    assert 0 < len(listing["tasks"]) < len(plain["tasks"])
    for task in listing["tasks"]:
        assert any(" += " in line for line in task["dag"])
        for implementation in task["implementations"]:
            space = implementation["space"]
            assert space["size"] >= len(space["designs"]) > 0
            assert {"name", "kind", "what", "options"} == set(space["designs"][0][0])


def test_only_selected_tasks_are_listed(network):
    table = output(network, "--tasks", "0")
    assert "1 task," in table
