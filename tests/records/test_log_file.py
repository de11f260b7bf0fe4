"""Logs that are removed, moved or replaced while a run writes to them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import no_locks
from records.sample_log import header, trial, write
from records.test_designs import trace
from tvmtune.errors import TvmtuneError
from tvmtune.records.log import LogLost, LogWriter, read_log


def begun(path: Path) -> LogWriter:
    writer = LogWriter(path)
    writer.append("header", header())
    writer.trial(trial("a", "1", 1.0))
    return writer


def candidates(path: Path) -> list[str]:
    return [t.candidate for t in read_log(path).trials]


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    write(path.with_name("other.json"), trial("a", "other", 1.0)).replace(path)


@pytest.mark.parametrize("act", [remove, replace])
def test_a_log_without_a_name_is_saved_with_the_trial_at_hand(tmp_path, act):
    path, saved = tmp_path / "log.json", tmp_path / "log.json.rescued"
    with begun(path) as writer:
        act(path)
        with pytest.raises(LogLost, match=re.escape(f"every trial was saved to {saved}.")):
            writer.trial(trial("a", "2", 2.0))
        with pytest.raises(LogLost, match=re.escape(str(saved))):  # and nothing further is written
            writer.trial(trial("a", "3", 3.0))
    assert candidates(saved) == ["1", "2"]
    assert path.exists() == (act is replace)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["log.json"] * path.exists() + ["log.json.rescued"]
    )


def test_a_trial_of_a_new_design_is_saved_with_it(tmp_path):
    path, saved = tmp_path / "log.json", tmp_path / "log.json.rescued"
    with begun(path) as writer:
        path.unlink()
        with pytest.raises(LogLost, match=re.escape(str(saved))):
            writer.trial(trial("a", "2", 2.0, trace=trace(4)))
    assert candidates(saved) == ["1", "2"]


def test_a_log_that_was_moved_is_continued_where_it_is(tmp_path):
    path, moved = tmp_path / "log.json", tmp_path / "kept.json"
    with begun(path) as writer:
        path.rename(moved)
        with pytest.raises(LogLost, match=re.escape(f"every trial is in {moved}.")):
            writer.trial(trial("a", "2", 2.0))
    assert candidates(moved) == ["1", "2"]
    with LogWriter(moved) as writer:
        writer.trial(trial("a", "3", 3.0))
    assert candidates(moved) == ["1", "2", "3"]


def test_a_log_lost_after_its_last_line_is_saved_at_the_end(tmp_path):
    path, saved = tmp_path / "log.json", tmp_path / "log.json.rescued"
    writer = begun(path)
    path.unlink()
    with pytest.warns(UserWarning, match=re.escape(f"every trial was saved to {saved}.")):
        writer.close()
    assert candidates(saved) == ["1"]


def test_an_earlier_rescue_is_kept(tmp_path):
    path = tmp_path / "log.json"
    (tmp_path / "log.json.rescued").write_text("of an earlier run")
    with begun(path) as writer:
        path.unlink()
        with pytest.raises(LogLost, match=r"log\.json\.rescued-2\."):
            writer.check()
    assert candidates(tmp_path / "log.json.rescued-2") == ["1"]
    assert (tmp_path / "log.json.rescued").read_text() == "of an earlier run"


def test_a_log_removed_with_its_folder_is_saved_elsewhere(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    with begun(folder / "log.json") as writer:
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()
        with pytest.raises(LogLost, match="every trial was saved to"):
            writer.check()
    assert candidates(tmp_path / "log.json.rescued") == ["1"]


@pytest.mark.parametrize("act", [remove, replace, lambda path: path.rename(f"{path}.old")])
def test_a_second_writer_is_refused_after_a_removal_or_a_move(tmp_path, act):
    path = tmp_path / "log.json"
    write(tmp_path / "other.json", trial("a", "other", 1.0))
    writer = begun(path)
    act(path)
    for name in (path, tmp_path / "log.json.old"):
        if name == path or name.exists():
            with pytest.raises(TvmtuneError, match="another process is writing to"):
                LogWriter(name)
    assert act is replace or not path.exists()  # nor does the refused one leave a file
    with pytest.raises(LogLost):
        writer.check()
    writer.close()
    LogWriter(path).close()


def test_the_lock_covers_other_names_of_the_log(tmp_path):
    path, link = tmp_path / "log.json", tmp_path / "link.json"
    link.symlink_to(path)
    (tmp_path / "hard.json").touch()
    with begun(path):
        os.link(path, tmp_path / "hard-2.json")
        for name in (link, tmp_path / "hard-2.json"):
            with pytest.raises(TvmtuneError, match="another process is writing"):
                LogWriter(name)


@pytest.mark.parametrize("number", no_locks.ERRORS)
def test_a_log_where_nothing_can_be_locked_is_refused_as_such(tmp_path, monkeypatch, number):
    path = write(tmp_path / "log.json", trial("a", "1", 1.0))
    before = path.read_bytes()
    no_locks.patch(monkeypatch, number)
    with pytest.raises(TvmtuneError) as caught:
        LogWriter(path)
    assert str(caught.value) == (
        f"cannot write the log {path}: its file system cannot lock files ({os.strerror(number)}), "
        "so two runs could write to it at once. Put it on a local disk with --log."
    )
    assert [p.name for p in tmp_path.iterdir()] == ["log.json"]
    assert path.read_bytes() == before
    monkeypatch.undo()
    LogWriter(path).close()


def test_the_lock_file_of_a_killed_writer_is_no_hindrance(tmp_path):
    (tmp_path / ".log.json.lock").touch()
    begun(tmp_path / "log.json").close()
    assert [p.name for p in tmp_path.iterdir()] == ["log.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_log_in_a_folder_without_write_permission_can_be_continued(tmp_path):
    path = tmp_path / "log.json"
    begun(path).close()
    tmp_path.chmod(0o555)
    try:
        with LogWriter(path) as writer:
            writer.trial(trial("a", "2", 2.0))
    finally:
        tmp_path.chmod(0o755)
    assert candidates(path) == ["1", "2"]
