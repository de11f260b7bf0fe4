"""Designs: the common part of traces is written once, and every trace is restored exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from records.sample_log import header, trace, trial, write
from tvmtune.errors import TvmtuneError
from tvmtune.records.log import LogWriter, read_log

DOCUMENT = Path(__file__).parents[2] / "docs/log-format.md"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewritten(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def sample_trials(count: int = 4, **more: Any) -> list[Any]:
    """Trials of one design."""
    return [trial("a", str(n), 1.0, trace=trace(2**n), **more) for n in range(count)]


def test_a_design_is_written_once_before_its_first_trial(tmp_path):
    plain = sample_trials()
    cached = [trial("a", f"c{n}", 1.0, trace=trace(2**n, cached=True)) for n in range(3)]
    path = write(tmp_path / "log.json", *plain[:2], *cached, *plain[2:])
    kinds = [line["type"] for line in lines(path)]
    assert kinds == ["header", "task", "design", *["trial"] * 2, "design", *["trial"] * 5]
    designs = [line["design"] for line in lines(path) if line["type"] == "design"]
    used = [line["design"] for line in lines(path) if line["type"] == "trial"]
    assert used == [designs[0]] * 2 + [designs[1]] * 3 + [designs[0]] * 2


def test_traces_are_read_back_as_they_were_written(tmp_path):
    traces = [trace(tile, cached=cached) for tile in (1, 2, 8) for cached in (False, True)]
    traces.append(
        [[["EnterPostproc", [], [], []], ["Annotate", ["b0", "é\n\U0001f600"], [0.1], []]], []]
    )
    traces.append([[["GetSBlock", [], ["without post-processors"], ["b0"]]], []])
    trials = [trial("a", str(n), 1.0, trace=each) for n, each in enumerate(traces)]
    path = write(tmp_path / "log.json", *trials)
    assert [t.trace for t in read_log(path).trials] == traces
    assert [t.trace for t in trials] == traces, "nor does writing change them"


def test_the_design_is_on_disk_before_its_trial(tmp_path):
    path = tmp_path / "log.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
        for each in sample_trials():
            expected = each.trace
            writer.trial(each)
            assert read_log(path).trials[-1].trace == expected


def test_similar_post_processors_take_little_space(tmp_path):
    path = write(tmp_path / "log.json", *sample_trials())
    whole = len(json.dumps(trace(2)))
    later = [line for line in lines(path) if line["type"] == "trial"][1:]
    assert whole > 1000
    assert max(len(line["postprocs"]) for line in later) < whole / 4


def test_trials_share_the_instructions_of_their_design(tmp_path):
    path = write(tmp_path / "log.json")
    with LogWriter(path) as writer:
        written = [writer.trial(each) for each in sample_trials(2)]
    for first, second in (written, read_log(path).trials):
        assert first.trace[0][0] is second.trace[0][0]
        assert first.trace[1] != second.trace[1]


@pytest.mark.parametrize("odd", [None, [], "text", [[], None], {"a": 1}, [[], [], []]])
def test_an_invalid_trace_is_kept_unchanged(tmp_path, odd):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0, trace=odd))
    assert [t.trace for t in read_log(path).trials] == [odd]


def test_a_log_can_end_after_a_design(tmp_path):
    path = write(tmp_path / "log.json", *sample_trials(1))
    rewritten(path, lines(path)[:-1])  # killed between the two lines
    assert read_log(path).trials == []
    with LogWriter(path) as writer:
        writer.trial(sample_trials(1)[0])
    assert [t.trace for t in read_log(path).trials] == [trace(1)]


def test_every_run_writes_the_designs_that_it_uses(tmp_path):
    path = write(tmp_path / "log.json", *sample_trials(2))
    write(path, *sample_trials(3)[2:], trial("a", "same", 1.0, trace=trace(1)))
    parsed = lines(path)
    second = [line["type"] for line in parsed].index("header", 1)
    alone = rewritten(tmp_path / "second.json", parsed[second:])
    assert [t.trace for t in read_log(alone).trials] == [trace(4), trace(1)]
    assert [t.trace for t in read_log(path).trials] == [trace(n) for n in (1, 2, 4, 1)]


def test_concatenated_logs_keep_their_own_examples_of_a_design(tmp_path):
    first = write(tmp_path / "first.json", *sample_trials())
    second = write(tmp_path / "second.json", *reversed(sample_trials()))
    keys = [[r["design"] for r in lines(p) if r["type"] == "design"] for p in (first, second)]
    assert keys[0] != keys[1], "the same instructions, with another example"
    both = tmp_path / "both.json"
    both.write_bytes(first.read_bytes() + second.read_bytes() + first.read_bytes())
    expected = [trace(2**n) for n in (0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3)]
    assert [t.trace for t in read_log(both).trials] == expected


def test_a_trial_without_its_design_is_rejected_with_its_line(tmp_path):
    path = write(tmp_path / "log.json", *sample_trials())
    parsed = lines(path)
    key = parsed[2]["design"]
    rewritten(path, parsed[:2] + parsed[3:])
    with pytest.raises(
        TvmtuneError, match=f"is incomplete: the trial on line 3 needs the design {key}"
    ):
        read_log(path)
    rewritten(path, [*parsed[:2], parsed[3], parsed[2], *parsed[4:]])
    with pytest.raises(
        TvmtuneError, match="line 3 needs .* no earlier line contains. Restore the file"
    ):
        read_log(path)


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (2, {"postprocs": "AAAA"}),
        (2, {"postprocs": "not base64"}),
        (2, {"instructions": [["GetSBlock", [], ["other", "main"], ["b0"]]]}),
        (2, {"instructions": None}),
        (4, {"postprocs": ""}),
        (4, {"postprocs": "eNor"}),
        (4, {"postprocs": 3}),
    ],
)
def test_a_damaged_trace_is_rejected_with_its_line(tmp_path, line, change):
    path = write(tmp_path / "log.json", *sample_trials())
    parsed = lines(path)
    parsed[line] |= change
    rewritten(path, parsed)
    with pytest.raises(TvmtuneError, match=f"line {line + 1}"):
        read_log(path)


def test_a_trial_under_another_design_is_rejected_with_its_line(tmp_path):
    plain, cached = sample_trials(2), trial("a", "c", 1.0, trace=trace(16, cached=True))
    path = write(tmp_path / "log.json", cached, *plain)
    parsed = lines(path)
    parsed[6]["design"] = parsed[2]["design"]
    rewritten(path, parsed)
    with pytest.raises(TvmtuneError, match="is damaged: line 7"):
        read_log(path)


@pytest.mark.parametrize("kind", ["design", "trial"])
def test_every_field_of_a_line_is_documented(tmp_path, kind):
    text = DOCUMENT.read_text()
    section = text.split(f"## `{kind}`")[1].split("\n## ")[0]
    line = next(
        r for r in lines(write(tmp_path / "log.json", *sample_trials())) if r["type"] == kind
    )
    assert [f for f in line if f != "type" and f"`{f}`" not in section] == []
