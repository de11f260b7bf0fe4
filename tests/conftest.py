"""Fixtures and settings for all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from libraries import make_library, spoiled
from models import tiny_cnn
from tvmtune import block_torch_import
from tvmtune.library import metadata
from tvmtune.machine.threads import allowed_cpus
from tvmtune.remote import access
from tvmtune.runtime.library import Library

if TYPE_CHECKING:
    from remote.served import Farm

# The thread pool that the first kernel starts keeps this size; it cannot grow later.
os.environ.setdefault("TVM_NUM_THREADS", str(min(2, len(allowed_cpus()))))
# The benchmark at the end of each tuning run: times in tests mean nothing.
os.environ["TVMTUNE_TUNE_BENCH_REPEAT"] = "3"

block_torch_import.install()  # as in tvmtune's own processes

gc.disable()  # until all tests are collected


LARGE_SWEEP = 6
"""Cases of a sweep above which half of them are left to the soak."""


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make all cases of a sweep slow but the first that is not slow by itself, and leave about half of
    a large sweep to the soak.

    Start long tests first: started last, they would run alone while other workers idle.

    Then run whole modules in mixed order: those of one folder all compute, or all wait for boards and
    deadlines, and two of the same kind in parallel leave a CPU idle or overload it.
    """

    def order(item: pytest.Item) -> tuple[bool, int]:
        return item.get_closest_marker("long") is None, zlib.crc32(item.path.name.encode())

    cases = Counter(item.nodeid.partition("[")[0] for item in items)
    begun = set()
    for item in items:
        is_marked = item.get_closest_marker("slow") or item.get_closest_marker("soak")
        if item.get_closest_marker("sweep") and not is_marked:
            name = item.nodeid.partition("[")[0]
            if name in begun:
                is_left = cases[name] > LARGE_SWEEP and zlib.crc32(item.nodeid.encode()) % 2
                item.add_marker("soak" if is_left else "slow")
            begun.add(name)
    items.sort(key=order)
    for item in items:
        # Tracing slows Python by 40%, and much of what slow tests do is in other processes.
        if item.get_closest_marker("slow") or item.get_closest_marker("soak"):
            item.add_marker("no_cover")


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among modules and tests, which stay anyway."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """No secret of a farm, whatever the environment or a command in an earlier test has set: commands
    hand it to their children by the environment."""
    for name in (access.SECRET, access.SECRET_FILE):
        monkeypatch.setenv(name, "")  # or what a test sets would stay
        monkeypatch.delenv(name)


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """A farm whose processes end with the test and leave nothing behind."""
    from remote.served import Farm

    folder = tmp_path / "farm"
    folder.mkdir()
    started = Farm(folder)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="session")
def tiny_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of ``tiny_cnn``, with a check; its network is ``model.onnx`` beside it."""
    return make_library(tiny_cnn(), tmp_path_factory.mktemp("made"), threads=default_threads())


@pytest.fixture(scope="session")
def opened(tiny_library: Path) -> Library:
    return Library.open(tiny_library)


@pytest.fixture
def copy(tiny_library: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(tiny_library, tmp_path / "copy.so"))


@pytest.fixture(scope="session")
def wrong(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with one wrong weight that claims to be ``tiny_library``."""
    path = make_library(spoiled(tiny_cnn()), tmp_path_factory.mktemp("wrong"), check=False)
    metadata.append(path, metadata.read(tiny_library))
    return path


def default_threads() -> int:
    return min(2, len(allowed_cpus()))


@pytest.fixture
def command_line(capfd):
    """``tvmtune`` in this process: ``command_line(*words)`` gives exit code, stdout and stderr."""
    from tvmtune.cli import main

    def invoke(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        captured = capfd.readouterr()
        return ended.value.code, captured.out, captured.err

    return invoke


@pytest.fixture
def within(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Any]]:
    """``within(60)``: the test fails if it has not finished in 60 seconds, whatever it waits for."""

    def late(*_: object) -> None:
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    try:
        yield signal.alarm
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
