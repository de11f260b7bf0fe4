"""Logs that were made to do harm: bombs, depth, other types."""

from __future__ import annotations

import base64
import gzip
import json
import lzma
import zlib
from pathlib import Path
from typing import Any

import pytest

from records.sample_log import header, trace, trial, write
from tvmtune.errors import TvmtuneError
from tvmtune.records import lines
from tvmtune.records.log import read_log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    trials = [trial("a", str(n), 1.0 + n, trace=trace(2)) for n in range(3)]
    return write(tmp_path / "log.json", *trials)


def line_of(kind: str, record: Any) -> bytes:
    return json.dumps({"type": kind, **record}).encode() + b"\n"


def edited(path: Path, of: str, **changes: Any) -> None:
    """Change the last line of this kind."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    last = max(n for n, record in enumerate(records) if record["type"] == of)
    records[last] |= changes
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("ends", [b"\n", b""], ids=["many lines", "one line"])
def test_a_compressed_log_that_unpacks_to_much_more_is_refused(tmp_path, path, suffix, ends):
    bomb = tmp_path / f"bomb.json{suffix}"
    rest = (b" " * 99_999 + ends) * 400
    pack = gzip.compress if suffix == ".gz" else lambda data: lzma.compress(data, preset=0)
    bomb.write_bytes(pack(path.read_bytes() + rest))
    assert bomb.stat().st_size < len(rest) / 200
    with pytest.raises(
        TvmtuneError, match=r"bomb.json.*(unpacks to more than|is longer than) \d+ MiB"
    ):
        read_log(bomb)


def test_a_compressed_log_may_be_much_smaller_than_its_content(tmp_path, path):
    packed = tmp_path / "log.json.xz"
    packed.write_bytes(lzma.compress(path.read_bytes() + (b" " * 999 + b"\n") * 10_000))
    assert len(read_log(packed).trials) == 3


def test_a_line_without_end_is_refused(tmp_path, path):
    with path.open("ab") as file:
        file.truncate(lines.LONGEST * 8)
    with pytest.raises(TvmtuneError, match=r"line 7 is longer than 16 MiB"):
        read_log(path)


@pytest.mark.parametrize("kind", ["design", "trial"])
def test_a_trace_that_unpacks_to_megabytes_is_refused(path, kind):
    bomb = base64.b64encode(zlib.compress(bytes(40 << 20), 9)).decode()
    edited(path, kind, postprocs=bomb)
    with pytest.raises(
        TvmtuneError, match=r"line \d: the post-processors are longer than \d+ bytes"
    ):
        read_log(path)


def test_many_traces_that_unpack_to_a_lot_together_are_refused(path):
    bomb = base64.b64encode(zlib.compress(bytes(4_000_000), 9)).decode()
    record = json.loads(path.read_text().splitlines()[-1]) | {"postprocs": bomb}
    path.write_bytes(path.read_bytes() + line_of("trial", record) * 1000)
    with pytest.raises(TvmtuneError, match="it unpacks to too much"):
        read_log(path)


@pytest.mark.parametrize("depth", [101, 1000, 100_000])
@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}")], ids=["lists", "objects"])
def test_deep_json_is_refused(path, depth, pair):
    before, after = pair
    deep = before * depth + "1" + after * depth
    path.write_bytes(path.read_bytes() + b'{"type":"note","x":' + deep.encode() + b"}\n")
    with pytest.raises(TvmtuneError, match="line 7 is not a JSON record"):
        read_log(path)


def test_json_of_moderate_depth_is_read(path):
    deep = "[" * 90 + "]" * 90
    path.write_bytes(path.read_bytes() + b'{"type":"note","x":' + deep.encode() + b"}\n")
    assert len(read_log(path).trials) == 3


def changed(name: str, value: Any) -> dict[str, Any]:
    described = header()
    return described | {"device": described["device"] | {name: value}}


@pytest.mark.parametrize(
    "record",
    [
        header() | {"device": []},
        header() | {"network": "net"},
        header() | {"format": True},
        header() | {"versions": [1]},
        header() | {"network": {"inputs": [1]}},
        header() | {"network": {"structure_hash": {}}},
        *(changed(name, []) for name in ("identity", "model")),
        changed("target", "llvm"),
        changed("threads", "2"),
    ],
)
def test_a_header_with_other_types_is_refused(path, record):
    path.write_bytes(path.read_bytes() + line_of("header", record))
    with pytest.raises(TvmtuneError, match="header is incomplete|line 7: "):
        read_log(path)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("task", {"task": []}),
        ("task", {"implementations": {}}),
        ("task", {"implementations": [3]}),
        ("task", {"implementations": [{"name": []}]}),
        ("design", {"design": {}}),
        ("design", {"instructions": "x"}),
        ("trial", {"candidate": []}),
        ("trial", {"workload": None}),
        ("trial", {"kind": {}}),
        ("trial", {"error": "failed"}),
        ("trial", {"error": {}}),
        ("trial", {"verified": 1}),
        ("trial", {"time": float("nan")}),
        ("trial", {"device": "nobody's"}),
        ("trial", {"design": []}),
        ("trial", {"decisions": 3}),
        ("trial", {"remeasured": "all"}),
    ],
)
def test_a_line_with_other_types_is_refused(path, kind, changes):
    edited(path, kind, **changes)
    with pytest.raises(TvmtuneError, match=r"line \d"):
        read_log(path)


def test_post_processors_that_are_no_instructions_are_an_error_when_they_are_used(path):
    edited(path, "trial", postprocs=base64.b64encode(zlib.compress(b"17")).decode())
    (*_, last) = read_log(path).trials
    with pytest.raises(TvmtuneError, match="the post-processors of a trial in the log are damaged"):
        _ = last.trace
