"""Selection of the best records, and distilled logs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disks import NO_BYTECODE
from records.sample_log import device, trial, write
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records.best import best_of, comparable, distill, ranked
from tvmtune.records.log import LogWriter, read_log

DISTILL_WITHOUT_ROOM = """
import pathlib, resource, signal, sys
from tvmtune.errors import TvmtuneError
from tvmtune.records.best import distill
from tvmtune.records.log import read_log

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
source, target = map(pathlib.Path, sys.argv[1:])
log = read_log(source)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
try:
    distill([log], target)
except TvmtuneError as error:
    sys.exit(str(error))
"""


def candidates(path: Path) -> list[str]:
    return [t.candidate for t in read_log(path).trials]


def test_only_times_of_the_same_kind_and_device_are_compared(tmp_path):
    mine, more_threads, other = device(), device(threads=4), device(model="another CPU")
    path = tmp_path / "log.json"
    write(path, trial("a", "1", 5.0), trial("a", "guess", 1.0, kind="modelled"), of=mine)
    write(path, trial("a", "2", 2.0), of=more_threads)
    write(path, trial("a", "3", 3.0), of=other)
    trials = read_log(path).trials
    for of, expected in ((mine, "1"), (more_threads, "2"), (other, "3")):
        assert [t.candidate for t in comparable(trials, of.identity())] == [expected]
    modelled = comparable(trials, mine.identity(), "modelled")
    assert [t.candidate for t in modelled] == ["guess"]


def test_candidates_are_ranked_by_time_and_listed_once():
    trials = [
        trial("a", "slow", 3.0),
        trial("a", "again", 2.5),
        trial("a", "again", 1.0),
        trial("a", "failed"),
        trial("a", "wrong", 0.1, verified=False),
        trial("b", "only", 9.0),
    ]
    order = {task: [t.candidate for t in ranking] for task, ranking in ranked(trials).items()}
    assert order == {"a": ["again", "slow"], "b": ["only"]}
    assert ranked(trials)["a"][0].latency == 1.0


def test_implementations_of_a_task_are_ranked_together():
    trials = [trial("a", "1", 2.0), trial("a", "1", 1.0, implementation="winograd")]
    assert [t.implementation for t in ranked(trials)["a"]] == ["winograd", "direct"]


def test_a_verified_trial_is_preferred_to_a_faster_unchecked_one():
    trials = [trial("a", "unchecked", 1.0), trial("a", "checked", 2.0, verified=True)]
    assert best_of(trials)["a"].candidate == "checked"
    assert best_of(trials[:1])["a"].candidate == "unchecked"


def test_distill_keeps_the_verified_best_of_each_task_and_device(tmp_path):
    first = write(
        tmp_path / "first.json",
        trial("a", "1", 1.0),
        trial("a", "2", 2.0, verified=True),
        trial("b", "3", 3.0),
        trial("c", "4"),
    )
    other = device(threads=4)
    second = write(tmp_path / "second.json", trial("a", "5", 0.5), of=other)
    third = write(tmp_path / "third.json", trial("a", "6", 1.5, verified=True))
    best = tmp_path / "best.json"
    counts = distill([read_log(p) for p in (first, second, third)], best)
    assert counts == {"trials": 6, "kept": 3, "tasks": 2, "devices": 2}
    log = read_log(best)
    kept = {(t.device, t.task): t.candidate for t in log.trials}
    mine = device().identity()
    assert kept == {(mine, "a"): "6", (mine, "b"): "3", (other.identity(), "a"): "5"}
    assert set(log.tasks) == {"a", "b"}
    assert all(h["distilled"] for h in log.headers)
    # distilling once more changes nothing
    again = tmp_path / "again.json"
    distill([log], again)
    assert again.read_bytes() == best.read_bytes()


def test_modeled_and_measured_records_are_kept_separately(tmp_path):
    path = write(
        tmp_path / "log.json", trial("a", "1", 5.0), trial("a", "guess", 1.0, kind="modelled")
    )
    distill([read_log(path)], tmp_path / "best.json")
    assert sorted(candidates(tmp_path / "best.json")) == ["1", "guess"]


def test_top_keeps_more_records_the_one_to_ship_first(tmp_path):
    trials = [trial("a", str(n), float(n), verified=n == 3 or None) for n in range(1, 6)]
    log = read_log(write(tmp_path / "log.json", *trials))
    distill([log], tmp_path / "best.json", top=3)
    assert candidates(tmp_path / "best.json") == ["3", "1", "2"]
    distill([log], tmp_path / "best.json", top=99)
    assert candidates(tmp_path / "best.json") == ["3", "1", "2", "4", "5"]


def test_distill_on_a_full_disk_leaves_the_old_file(tmp_path):
    log = write(tmp_path / "log.json", *(trial("a", str(n), 1.0) for n in range(20)))
    best = tmp_path / "best.json"
    older = write(tmp_path / "older.json", trial("a", "old", 1.0))
    distill([read_log(older)], best)
    older.unlink()
    before = best.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", DISTILL_WITHOUT_ROOM, str(log), str(best)],
        env=os.environ | NO_BYTECODE,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"cannot write to the log {best}: " in done.stderr
    assert best.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.json", "log.json"]


def test_distill_of_failures_only_is_rejected_and_keeps_the_old_file(tmp_path):
    log = read_log(write(tmp_path / "log.json", trial("a", "1"), trial("a", "2")))
    best = write(tmp_path / "best.json", trial("a", "old", 1.0))
    with pytest.raises(TvmtuneError, match="no valid trial"):
        distill([log], best)
    assert candidates(best) == ["old"]


def test_an_input_log_is_never_overwritten(tmp_path):
    log = write(tmp_path / "log.json", trial("a", "1", 2.0), trial("b", "2", 1.0))
    before = log.read_bytes()
    with pytest.raises(UsageError, match="is also an input"):
        distill([read_log(log)], log)
    assert log.read_bytes() == before


def test_a_log_that_a_session_writes_to_is_not_replaced(tmp_path):
    source = write(tmp_path / "log.json", trial("a", "1", 2.0))
    busy = write(tmp_path / "busy.json", trial("a", "1", 2.0))
    with LogWriter(busy), pytest.raises(TvmtuneError, match="another process is writing"):
        distill([read_log(source)], busy)


@pytest.mark.parametrize("kind", ["a log", "a continued distillate", "another file"])
def test_only_a_distilled_log_is_replaced(tmp_path, kind):
    log = read_log(write(tmp_path / "log.json", trial("a", "1", 1.0)))
    output = tmp_path / "other.json"
    if kind == "another file":
        output.write_text("not yours\n")
    else:
        if kind == "a continued distillate":
            distill([log], output)
        write(output, *(trial("a", str(n), 1.0) for n in range(50)))
    before = output.read_bytes()
    with pytest.raises(UsageError, match="exists and is not a distilled log: choose another -o"):
        distill([log], output)
    assert output.read_bytes() == before
    distill([log], output, force=True)
    assert candidates(output) == ["1"]


@pytest.mark.parametrize("content", [None, b"", b'{"type":"header","form'])
def test_a_distilled_or_empty_file_is_replaced(tmp_path, content):
    log = read_log(write(tmp_path / "log.json", trial("a", "1", 1.0)))
    output = tmp_path / "best.json"
    if content is None:
        distill([log], output)
    else:
        output.write_bytes(content)
    distill([log], output)
    assert candidates(output) == ["1"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.json", "log.json"]


def test_a_candidate_found_wrong_in_one_log_is_not_taken_from_another():
    good, copy = trial("a", "1", 1.0), trial("a", "1", 0.9)
    other = trial("a", "2", 2.0)
    for trials in (
        [good.with_verdict(False), copy, other],
        [copy, other, good.with_verdict(False)],
    ):
        assert best_of(trials)["a"] is other
