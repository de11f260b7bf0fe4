"""The file of rows: resuming after a kill, damaged lines, equal and different states."""

from __future__ import annotations

import json

import pytest
from comparison import rows
from comparison.state import Case, row_key


def row(key: str, **more):
    return {
        "network": "net",
        "threads": 1,
        "state": {},
        "state_key": "s",
        "key": key,
        "measured": 1.0,
        **({} if "failure" in more else {"runs": []}),
        **more,
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


def keys(path, warn=lambda message: None):
    return [each["key"] for each in rows.read(path, warn)]


def test_no_file_means_no_rows(path):
    assert rows.read(path) == []


def test_a_torn_last_line_is_ignored_and_spoils_no_later_row(path):
    rows.append(path, row("a"))
    rows.append(path, row("b"))
    path.write_bytes(path.read_bytes()[:-10])
    said: list[str] = []
    assert keys(path, said.append) == ["a"]
    assert len(said) == 1 and ":2 is not JSON" in said[0] and "torn" in said[0]
    rows.append(path, row("c"))
    assert keys(path) == ["a", "c"]


@pytest.mark.parametrize(
    "damage",
    [b"garbage", b"\xff\xfe", b"[1, 2]", b'{"format": 1}', b'{"format": 99, "key": "x"}', b"null"],
)
def test_damaged_lines_are_ignored_with_their_number(path, damage):
    rows.append(path, row("a"))
    with path.open("ab") as file:
        file.write(damage + b"\n")
    rows.append(path, row("b"))
    said: list[str] = []
    assert keys(path, said.append) == ["a", "b"]
    assert [message.split(" ")[0] for message in said] == [f"{path}:2"]


def test_values_that_json_lacks_are_refused(path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        rows.append(path, row("a", ms=float("nan")))
    assert not path.exists()


def test_the_last_row_of_a_key_counts_but_no_failure_replaces_a_measurement():
    first, second, failed = row("a", ms=1), row("a", ms=2), row("a", failure="it crashed")
    assert rows.latest([first, second]) == {"a": second}
    assert rows.latest([first, failed]) == {"a": first}
    assert rows.latest([failed, first]) == {"a": first}
    assert rows.latest([failed]) == {"a": failed}


def test_rows_of_other_networks_threads_versions_and_options_have_other_keys(tmp_path):
    now = {"versions": {"onnxruntime": "1.32"}, "machine": {"cpu": "a"}, "measuring": {"repeat": 5}}
    case = Case("resnet-18", "NHWC")
    first = row_key(case, 1, now)
    assert row_key(Case("resnet-18", "NHWC"), 1, json.loads(json.dumps(now))) == first
    file = tmp_path / "resnet-18.onnx"
    file.write_bytes(b"one")
    others = {
        row_key(case, 2, now),
        row_key(Case("resnet-18", "NCHW"), 1, now),
        row_key(Case("resnet-34", "NHWC"), 1, now),
        row_key(Case(str(file), "NHWC"), 1, now),
        row_key(Case(str(file), "NHWC", ("x:1x3",)), 1, now),
        *(row_key(case, 1, {**now, part: {}}) for part in now),
    }
    file.write_bytes(b"two")
    others.add(row_key(Case(str(file), "NHWC"), 1, now))
    assert len(others - {first}) == 9
