"""CPU time of other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tvmtune.machine.background_load import BackgroundLoad


def test_background_load_counts_other_processes_only():
    load = BackgroundLoad()
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        pass
    own = load.share()
    assert own is not None
    assert 0 <= own <= 1
    load = BackgroundLoad()
    subprocess.run([sys.executable, "-c", "for _ in range(10**7): pass"], check=True)
    assert load.share() > 0.3 / os.cpu_count()


def test_background_load_is_unknown_without_system_statistics(monkeypatch):
    def fail():
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr("psutil.cpu_times", fail)
    assert BackgroundLoad().share() is None
