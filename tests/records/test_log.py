"""The log: no displayed trial is lost, and no damage goes undetected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from disks import NO_BYTECODE
from records.sample_log import device, header, task, trial, verdict, write
from tvmtune.errors import TvmtuneError
from tvmtune.records.log import FORMAT, LogWriter, is_empty, read_log

ADD_TRIALS = """
import pathlib, resource, sys
from records.sample_log import trial
from tvmtune.errors import TvmtuneError
from tvmtune.records.log import LogWriter

path, room = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with LogWriter(path) as writer:
    limit = path.stat().st_size + room
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for number in range(100):
        try:
            writer.trial(trial("a", f"new-{number}", 1.0))
        except TvmtuneError as error:
            sys.exit(f"{number} written; {error}")
"""


def run(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    """A separate Python process with the import path of this one."""
    setup = f"import signal, sys; sys.path[:] = {sys.path!r}\n"
    setup += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    return subprocess.run(
        [sys.executable, "-c", setup + script, *map(str, args)],
        env=os.environ | NO_BYTECODE,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_appended_lines_are_read_back(tmp_path):
    written = [
        trial("a", "1", 3e-3, 1e-3, 2e-3, tuner="xgb", time=12.5),
        trial("b", "2"),
        trial("a", "3", 1e-3, kind="modelled", verified=True),
    ]
    log = read_log(write(tmp_path / "log.json", *written))
    assert log.trials == [each.evolve(device=device().identity()) for each in written]
    assert [t.latency for t in log.trials] == [2e-3, float("inf"), 1e-3]
    assert list(log.tasks) == ["a", "b"]
    assert log.devices() == {device().identity(): device().to_json()}
    assert not log.torn


def test_each_line_is_in_the_file_when_append_returns(tmp_path):
    path = tmp_path / "log.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
        for number in range(3):
            writer.trial(trial("a", str(number), 1.0))
            assert [t.candidate for t in read_log(path).trials][-1] == str(number)


def test_unknown_fields_are_kept(tmp_path):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0))
    *others, line = path.read_text().splitlines()
    newer = json.dumps({**json.loads(line), "joules": 0.5})
    path.write_text("\n".join([*others, newer]) + "\n")
    (read,) = read_log(path).trials
    assert read.extra == {"joules": 0.5}
    with LogWriter(path) as writer:
        writer.trial(read)
    assert json.loads(path.read_text().splitlines()[-1]) == json.loads(newer)


def test_lines_of_an_unknown_type_are_ignored(tmp_path):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0))
    with LogWriter(path) as writer:
        writer.append("energy", {"joules": 1})
    assert len(read_log(path).trials) == 1


def test_a_torn_last_line_is_ignored_at_every_length(tmp_path):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0), trial("a", "2", 2.0))
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(start + 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        log = read_log(path)
        assert log.torn
        assert [t.candidate for t in log.trials] == ["1"]


def test_the_next_writer_cuts_a_torn_line(tmp_path):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0), trial("a", "2", 2.0))
    path.write_bytes(path.read_bytes()[:-9])
    with LogWriter(path) as writer:
        writer.trial(trial("a", "3", 3.0))
    log = read_log(path)
    assert not log.torn
    assert [t.candidate for t in log.trials] == ["1", "3"]


def test_a_torn_line_longer_than_one_read_is_cut(tmp_path):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type": "task", "module": "' + b"x" * 200_000)
    with LogWriter(path) as writer:
        writer.append("drift", {})
    assert path.read_bytes() == whole + b'{"type":"drift"}\n'


def test_taking_the_lock_changes_nothing(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("a line\nand one without its end")
    LogWriter(path).close()
    assert path.read_text() == "a line\nand one without its end"


def test_a_complete_last_line_without_its_newline_is_kept(tmp_path):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert len(read_log(path).trials) == 1
    with LogWriter(path) as writer:
        writer.trial(trial("a", "2", 2.0))
    assert [t.candidate for t in read_log(path).trials] == ["1", "2"]


@pytest.mark.parametrize(
    "damage",
    [b'{"type":"tri\n', b"\x00\x00\x00\n", b"\xff\xfe{}\n", b"[1, 2]\n", b'{"type":"trial"}\n'],
    ids=["half a line", "zeros", "not UTF-8", "not an object", "a trial without its fields"],
)
@pytest.mark.parametrize("position", [2, 3], ids=["in the middle", "at the end"])
def test_damage_is_rejected_with_its_line(tmp_path, damage, position):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:position], damage, *lines[position:]]))
    with pytest.raises(TvmtuneError, match=f"line {position + 1}"):
        read_log(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"\x7fELF\x02\x01", "is not a tvmtune log"),
        (b'{"i": ["resnet-18", 12]}\n', "is not a tvmtune log"),
        (b"[[1]]\n[[2]]\n", "is not a tvmtune log"),
        (b'{"type":"header","format":1}\n', "is not a tvmtune log: its header is incomplete"),
        (b'{"type":"header","format":1,"device":3,"network":4}\n', "is not a tvmtune log"),
    ],
)
def test_other_files_are_rejected(tmp_path, content, message):
    path = tmp_path / "log.json"
    path.write_bytes(content)
    with pytest.raises(TvmtuneError, match=message):
        read_log(path)
    assert path.read_bytes() == content


def test_a_missing_log_and_a_directory_are_named(tmp_path):
    with pytest.raises(TvmtuneError, match="there is no log at .*absent.json"):
        read_log(tmp_path / "absent.json")
    with pytest.raises(TvmtuneError, match="cannot read the log .*: Is a directory"):
        read_log(tmp_path)


def test_a_newer_format_is_rejected(tmp_path):
    path = tmp_path / "log.json"
    with LogWriter(path) as writer:
        writer.append("header", header() | {"format": FORMAT + 1})
    with pytest.raises(TvmtuneError, match=f"newer tvmtune .log format {FORMAT + 1};.*Upgrade"):
        read_log(path)


def test_a_second_writer_is_rejected_until_the_first_has_ended(tmp_path):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0))
    before = path.read_bytes()
    with LogWriter(path):
        second = run(ADD_TRIALS, path, 10**6)
    assert second.returncode == 1
    assert f"another process is writing to {path}" in second.stderr
    assert path.read_bytes() == before
    assert run(ADD_TRIALS, path, 10**6).returncode == 0
    assert len(read_log(path).trials) == 101


def test_the_lock_of_a_killed_writer_is_released(tmp_path):
    path = tmp_path / "log.json"
    held = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib; from tvmtune.records.log import LogWriter\n"
            "writer = LogWriter(pathlib.Path(sys.argv[1])); print('held', flush=True); input()",
            str(path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with held:
        assert held.stdout is not None
        assert held.stdout.readline() == b"held\n"
        with pytest.raises(TvmtuneError, match="another process is writing"):
            LogWriter(path)
        held.kill()
    LogWriter(path).close()


def test_concatenated_logs_are_one_log(tmp_path):
    other = device(threads=4)
    first = write(tmp_path / "first.json", trial("a", "1", 1.0))
    second = write(tmp_path / "second.json", trial("a", "1", 2.0), trial("b", "2", 2.0), of=other)
    both = tmp_path / "both.json"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    log = read_log(both)
    assert [t.device for t in log.trials] == [device().identity(), *[other.identity()] * 2]
    assert list(log.devices()) == [device().identity(), other.identity()]
    assert list(log.tasks) == ["a", "b"]


def test_verdicts_are_merged_into_their_trials(tmp_path):
    trials = [trial("a", str(n), 1.0 + n) for n in range(3)]
    path = write(tmp_path / "log.json", *trials)
    with LogWriter(path) as writer:
        writer.append("verdict", verdict(trials[0], False, "off by 3"))
        writer.append("verdict", verdict(trials[1], True))
        writer.append("verdict", verdict(trial("a", "unheard of", 1.0), True))
    wrong, right, unchecked = read_log(path).trials
    assert wrong.verified is False
    assert wrong.error == {"stage": "wrong-answer", "message": "off by 3"}
    assert wrong.latency == float("inf")
    assert right.verified is True
    assert right.error is None
    assert unchecked.verified is None


def test_a_verdict_counts_for_its_own_device_only(tmp_path):
    same = trial("a", "1", 1.0)
    path = write(tmp_path / "log.json", same)
    with LogWriter(path) as writer:
        writer.append("header", header(device(threads=4)))
        writer.trial(same)
        writer.append("verdict", verdict(same, False))
    assert [t.verified for t in read_log(path).trials] == [None, False]


def test_the_last_description_of_a_task_is_used(tmp_path):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0))
    with LogWriter(path) as writer:
        writer.append("task", task("a") | {"weight": 7})
    assert read_log(path).tasks["a"]["weight"] == 7


@pytest.mark.parametrize("room", [0, 1, 100, 1000])
def test_a_full_disk_is_a_one_line_error_and_keeps_the_log_valid(tmp_path, room):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0))
    before = path.read_bytes()
    done = run(ADD_TRIALS, path, room)
    assert done.returncode == 1
    (message,) = done.stderr.splitlines()
    count, _, message = message.partition(" written; ")
    assert message.startswith(f"cannot write to the log {path}: ")
    assert "Everything before is kept" in message
    log = read_log(path)
    assert not log.torn
    assert path.read_bytes().startswith(before)
    assert len(log.trials) == 1 + int(count)


def test_a_log_that_cannot_be_created_is_a_one_line_error(tmp_path):
    path = Path(tmp_path / "absent" / "log.json")
    with pytest.raises(TvmtuneError, match="cannot write the log .*: No such file or directory"):
        LogWriter(path)


def test_a_torn_first_line_is_an_empty_log_and_the_next_writer_removes_it(tmp_path):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0))
    first = path.read_bytes().splitlines()[0]
    for torn in (*(first[:end] for end in range(1, len(first), 17)), bytes(100)):
        path.write_bytes(torn)
        assert is_empty(path)
        with pytest.raises(TvmtuneError, match="is empty"):
            read_log(path)
        with LogWriter(path) as writer:
            writer.append("header", header())
        assert len(read_log(path).headers) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"\x7fELF\x02\x01",
        b'{"name": "tiny',
        b"layers: 18",
        json.dumps({"type": "header", **header()}, separators=(",", ":")).encode(),
    ],
    ids=["a library", "JSON", "text", "a header without its newline"],
)
def test_other_files_of_one_line_are_not_taken_for_an_empty_log(tmp_path, content):
    path = tmp_path / "log.json"
    path.write_bytes(content)
    before = path.read_bytes()
    assert not is_empty(path)
    LogWriter(path).close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["before", "after", "between"])
@pytest.mark.parametrize("verified", [True, False])
def test_a_verdict_reaches_all_copies_of_a_candidate(tmp_path, place, verified):
    same = trial("a", "1", 1.0)
    plain = write(tmp_path / "plain.json", same, trial("a", "2", 2.0)).read_bytes()
    judged = write(tmp_path / "judged.json", same)
    with LogWriter(judged) as writer:
        writer.append("verdict", verdict(same, verified, "off by 3"))
    parts = {"before": [judged], "after": [plain, judged], "between": [plain, judged, plain]}
    parts["before"].append(plain)
    both = tmp_path / "both.json"
    both.write_bytes(b"".join(p if isinstance(p, bytes) else p.read_bytes() for p in parts[place]))
    copies = [t for t in read_log(both).trials if t.candidate == "1"]
    assert len(copies) > 1
    assert {t.verified for t in copies} == {verified}
    assert {t.ok for t in copies} == {verified}
    assert {t.verified for t in read_log(both).trials if t.candidate == "2"} == {None}


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_a_candidate_once_found_wrong_stays_wrong(tmp_path, order):
    same = trial("a", "1", 1.0)
    path = write(tmp_path / "log.json", same)
    with LogWriter(path) as writer:
        for verified in order:
            writer.append("verdict", verdict(same, verified, "" if verified else "off by 3"))
    (read,) = read_log(path).trials
    assert (read.verified, read.ok) == (False, False)
    assert read.error == {"stage": "wrong-answer", "message": "off by 3"}


def test_a_verdict_leaves_a_copy_that_failed_otherwise(tmp_path):
    failed, same = trial("a", "1"), trial("a", "1", 1.0)
    path = write(tmp_path / "log.json", failed, same)
    with LogWriter(path) as writer:
        writer.append("verdict", verdict(same, False))
    stages = [t.error["stage"] for t in read_log(path).trials if t.error]
    assert stages == ["build", "wrong-answer"]


@pytest.mark.parametrize(
    "seconds",
    [
        "[NaN]",
        "[-1.0]",
        "[0.0]",
        "[1.0, Infinity]",
        "[1e999]",
        '["1"]',
        '"1"',
        "[true]",
        "null",
        "3",
    ],
)
def test_impossible_times_are_ignored_with_one_warning(tmp_path, seconds):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0), trial("a", "2", 2.0))
    *others, line = path.read_text().splitlines()
    bad = line.replace('"seconds":[2.0]', f'"seconds":{seconds}')
    assert bad != line
    again = '{"type":"remeasure","workload":"w-a","candidate":"1","seconds":' + seconds + "}"
    path.write_text("\n".join([*others, bad, bad, again, line]) + "\n")
    with pytest.warns(UserWarning) as warned:
        read = read_log(path).trials
    assert [(t.candidate, t.latency) for t in read] == [("1", 1.0), ("2", 2.0)]
    (message,) = (str(w.message) for w in warned)
    assert f"{path}: the times on line {len(others) + 1} are not positive numbers" in message
    assert "on 2 more lines" in message


def test_a_trial_with_impossible_times_is_written_as_failed(tmp_path):
    path = tmp_path / "log.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
        written = writer.trial(trial("a", "1", 1.0, float("nan")))
    (read,) = read_log(path).trials
    for each in (written, read):
        assert not each.ok
        assert each.error == {"stage": "run", "message": "it reported impossible times: [1.0, nan]"}
