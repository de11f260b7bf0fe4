"""Logs of format 1 stay readable and can be continued; compressed ones can be read.

``format-1.json`` was written by the last version that wrote format 1, for a convolution of 8 to 16
channels; all but three trials were removed.
"""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest

from records.sample_log import header, trace, trial, write
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records.best import distill
from tvmtune.records.lines import COMPRESSED
from tvmtune.records.log import FORMAT, LogWriter, read_log

OLD = Path(__file__).parent / "format-1.json"


def lines(path: Path, kind: str) -> list[dict[str, Any]]:
    written = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in written if line["type"] == kind]


PACKERS = {".gz": gzip.compress, ".xz": lzma.compress}
compressed = pytest.mark.parametrize("suffix", PACKERS)


def packed(path: Path, suffix: str) -> Path:
    result = path.with_name(path.name + suffix)
    result.write_bytes(PACKERS[suffix](path.read_bytes()))
    return result


def test_a_log_of_format_1_is_read_unchanged():
    log = read_log(OLD)
    assert [h["format"] for h in log.headers] == [1]
    written = lines(OLD, "trial")
    assert len(written) == 3
    for read, line in zip(log.trials, written, strict=True):
        assert {name: getattr(read, name) for name in line.keys() - {"type", "verified"}} == {
            name: value for name, value in line.items() if name not in ("type", "verified")
        }
        assert read.extra == {}
    assert [t.verified for t in log.trials] == [True, None, None]


def test_schedules_of_format_1_are_the_ones_that_were_measured(tmp_path):
    from tvmtune.passes.workload_keys import structure
    from tvmtune.spaces import traces

    log = read_log(OLD)
    distill([log], tmp_path / "new.json", top=3)
    for trials in (log.trials, read_log(tmp_path / "new.json").trials):
        for each in trials:
            (implementation,) = log.tasks[each.task]["implementations"]
            mod = traces.load_module(implementation["module"])
            assert structure(traces.apply(mod, each.trace).mod) == each.candidate
        assert len({t.candidate for t in trials}) == 3


def test_a_log_of_format_1_is_continued_in_the_current_format(tmp_path):
    path = tmp_path / "log.json"
    shutil.copy(OLD, path)
    old = read_log(OLD)
    with LogWriter(path) as writer:
        writer.append("header", old.headers[0] | {"format": FORMAT})
        for each in [trial("a", "new", 1.0, trace=trace(2)), *read_log(OLD).trials]:
            writer.trial(each)
    assert path.read_bytes().startswith(OLD.read_bytes())
    log = read_log(path)
    assert [h["format"] for h in log.headers] == [1, FORMAT]
    assert [t.trace for t in log.trials[:3]] == [t.trace for t in old.trials]
    assert log.trials[3].trace == trace(2)
    assert [t.trace for t in log.trials[4:]] == [line["trace"] for line in lines(OLD, "trial")]


@pytest.mark.parametrize("old_first", [True, False])
def test_logs_of_both_formats_can_be_concatenated(tmp_path, old_first):
    new = write(tmp_path / "new.json", trial("a", "1", 1.0, trace=trace(2)))
    both = tmp_path / "both.json"
    order = [OLD, new] if old_first else [new, OLD]
    both.write_bytes(b"".join(path.read_bytes() for path in order))
    expected = [t.trace for path in order for t in read_log(path).trials]
    assert [t.trace for t in read_log(both).trials] == expected
    assert len(expected) == 4


def test_distill_writes_only_the_current_format(tmp_path):
    best = tmp_path / "best.json"
    distill([read_log(OLD)], best, top=3)
    assert [h["format"] for h in lines(best, "header")] == [FORMAT]
    assert not any("trace" in line for line in lines(best, "trial"))
    before = {t.candidate: t for t in read_log(OLD).trials}
    after = read_log(best).trials
    assert {t.candidate: t for t in after} == before
    assert best.stat().st_size < OLD.stat().st_size / 2


@compressed
def test_a_compressed_log_is_read_like_a_plain_one(tmp_path, suffix):
    plain = write(tmp_path / "log.json", *(trial("a", str(n), 1.0) for n in range(3)))
    log = read_log(packed(plain, suffix))
    assert log.trials == read_log(plain).trials
    assert len(log.trials) == 3
    plain.write_bytes(plain.read_bytes()[:-9])
    assert read_log(packed(plain, suffix)).torn
    both = tmp_path / f"both.json{suffix}"
    both.write_bytes(PACKERS[suffix](OLD.read_bytes()) + packed(plain, suffix).read_bytes())
    assert len(read_log(both).trials) == 5


@compressed
def test_a_damaged_compressed_log_is_a_one_line_error(tmp_path, suffix):
    whole = packed(write(tmp_path / "log.json", trial("a", "1", 1.0)), suffix).read_bytes()
    path = tmp_path / f"log.json{suffix}"
    for content in (
        whole[:-12],
        whole[:40],
        whole[:60] + b"\xff" * 30 + whole[90:],
        OLD.read_bytes(),
    ):
        path.write_bytes(content)
        with pytest.raises(
            TvmtuneError,
            match=f"truncated, damaged or, .* not compressed with {COMPRESSED[suffix]}",
        ):
            read_log(path)
    with pytest.raises(TvmtuneError, match="there is no log at .*absent.json"):
        read_log(tmp_path / f"absent.json{suffix}")


@compressed
def test_nothing_is_written_to_a_compressed_log(tmp_path, suffix):
    plain = write(tmp_path / "log.json", trial("a", "1", 1.0))
    path = packed(plain, suffix)
    before = path.read_bytes()
    remedy = f"can only be read. Choose a name without {suffix}; {COMPRESSED[suffix]} -d"
    with pytest.raises(UsageError, match=remedy):
        LogWriter(path)
    with pytest.raises(UsageError, match=f"cannot write to .*best.json{suffix}"):
        distill([read_log(plain)], tmp_path / f"best.json{suffix}")
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.json", f"log.json{suffix}"]


def test_a_newer_format_after_an_older_one_is_rejected(tmp_path):
    path = tmp_path / "log.json"
    shutil.copy(OLD, path)
    with LogWriter(path) as writer:
        writer.append("header", header() | {"format": FORMAT + 1})
    with pytest.raises(
        TvmtuneError, match=f"log format {FORMAT + 1}; this one reads up to {FORMAT}"
    ):
        read_log(path)
