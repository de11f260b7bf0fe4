"""Whole files: they replace the old one at once, and for good."""

from __future__ import annotations

import os
from pathlib import Path

from tvmtune import atomic_write


def test_the_content_is_on_disk_before_the_name_and_the_name_before_it_returns(
    tmp_path, monkeypatch
):
    path, events = tmp_path / "lib.so", []
    real_sync, real_rename = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        events.append("folder" if name == str(tmp_path) else f"file {Path(name).read_text()}")
        real_sync(descriptor)

    def rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    atomic_write.write_text(path, "new")
    assert events == ["file new", "rename", "folder"]
    assert path.read_text() == "new"
