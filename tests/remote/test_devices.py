"""What a tracker knows of its boards, and what they say of themselves."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from cli.commands import complaint, tvmtune
from remote import served
from tvmtune.machine import cpu_count, cpu_features, describe, package_versions
from tvmtune.remote import protocol
from tvmtune.remote.client.boards import Probe, queues, version_trouble
from tvmtune.remote.protocol import Address, Tracker


def listed(tracker: Address, cwd: Path, *words: str) -> dict[str, object]:
    done = tvmtune(
        *("devices", "--tracker", tracker, "--json", *words), cwd=cwd, timeout=served.LIMIT
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def register(tracker: Address, keys: list[str]) -> list[socket.socket]:
    """Boards that are a line with the tracker and nothing more."""
    lines = []
    for index, key in enumerate(keys):
        line = socket.create_connection((tracker.host, tracker.port), 10)
        lines.append(line)
        line.sendall(protocol.integer(protocol.TRACKER_MAGIC))
        assert protocol.receive(line, 4, time.monotonic() + served.LIMIT) == protocol.integer(
            protocol.TRACKER_MAGIC
        )
        info = {"key": f"server:{key}", "addr": [None, 20000 + index]}
        for message in (
            [protocol.UPDATE_INFO, info],
            [protocol.PUT, key, [20000 + index, protocol.match_key(key)], None],
        ):
            line.sendall(protocol.pack(message))
            size = protocol.read_integer(protocol.receive(line, 4, time.monotonic() + served.LIMIT))
            assert (
                json.loads(protocol.receive(line, size, time.monotonic() + served.LIMIT))
                == protocol.SUCCESS
            )
    return lines


@pytest.mark.slow
def test_a_hundred_keys_are_listed(farm: served.Farm) -> None:
    _, tracker = farm.tracker()
    keys = [f"board-{index}" for index in range(100)]
    lines = register(tracker, keys)
    began = time.perf_counter()
    with Tracker(tracker) as line:
        rows = queues(line)
    print(f"100 keys listed in {time.perf_counter() - began:.4f} s")
    assert sorted(row.key for row in rows) == sorted(keys)
    assert all((row.total, row.free, row.pending) == (1, 1, 0) for row in rows)
    for each in lines:
        each.close()


@pytest.mark.slow
def test_devices_prints_a_table_or_json(farm: served.Farm, tmp_path: Path) -> None:
    _, tracker = farm.tracker()
    empty = tvmtune("devices", "--tracker", tracker, cwd=tmp_path, timeout=served.LIMIT)
    assert (empty.returncode, empty.stdout) == (0, "no board is registered\n")
    lines = register(tracker, ["rk3399", "rk3399", "pi4"])
    shown = tvmtune("devices", "--tracker", tracker, cwd=tmp_path, timeout=served.LIMIT).stdout
    assert [row.split() for row in shown.splitlines() if "pi4" in row or "rk" in row] == [
        ["│", "pi4", "│", "1", "│", "1", "│", "0", "│"],
        ["│", "rk3399", "│", "2", "│", "2", "│", "0", "│"],
    ]
    assert listed(tracker, tmp_path) == {
        "tracker": str(tracker),
        "boards": [
            {"key": "pi4", "total": 1, "free": 1, "pending": 0},
            {"key": "rk3399", "total": 2, "free": 2, "pending": 0},
        ],
        "probes": [],
    }
    for each in lines:
        each.close()


@pytest.mark.slow
def test_probe_returns_each_boards_description(farm: served.Farm, tmp_path: Path) -> None:
    _, tracker = farm.tracker()
    farm.board("b", tracker)
    farm.board("b", tracker)
    probes = listed(tracker, tmp_path, "--probe")["probes"]
    assert isinstance(probes, list)
    assert len({probe["address"] for probe in probes}) == 2
    for probe in probes:
        assert probe["reachable"] and not probe["message"]
        assert probe["seconds"] > 0
        description = probe["described"]
        assert description["cpus"] == cpu_count.usable_cpus()
        assert description["features"] == cpu_features.available()
        assert description["versions"] == package_versions.versions()
        assert isinstance(description["gpus"], list)


@pytest.mark.slow
def test_probe_names_boards_that_are_frozen_or_gone(farm: served.Farm, tmp_path: Path) -> None:
    _, tracker = farm.tracker()
    _, sound = farm.board("sound", tracker)
    frozen = [farm.board(key, tracker) for key in ("frozen", "sound")]
    lines = register(tracker, ["gone"])
    for board, _ in frozen:
        os.kill(board.pid, signal.SIGSTOP)
    try:
        done = tvmtune(
            *("devices", "--probe", "--json", "--tracker", tracker, "--wait", "2"),
            cwd=tmp_path,
            timeout=served.LIMIT,
        )
    finally:
        for board, _ in frozen:
            os.kill(board.pid, signal.SIGCONT)
    probes = {probe["address"]: probe for probe in json.loads(done.stdout)["probes"]}
    assert done.returncode == 1
    assert probes[str(sound)]["reachable"]
    for _, address in frozen:
        assert not probes[str(address)]["reachable"]
        assert "does not answer" in probes[str(address)]["message"]
    (gone,) = (probe for probe in probes.values() if probe["key"] == "gone")
    assert not gone["reachable"]
    assert "cannot be reached" in gone["message"]
    for each in lines:
        each.close()


def test_a_board_with_another_tvm_version_is_unusable() -> None:
    description = {"versions": {"apache-tvm": "0.26.0"}}
    trouble = version_trouble(description)
    assert "apache-tvm 0.26.0" in trouble and "pip install apache-tvm==" in trouble
    assert not Probe("b", "h:1", True, trouble).usable
    assert not version_trouble({"versions": package_versions.versions()})
    assert not version_trouble(None)


def test_a_missing_tracker_is_a_one_line_error(farm: served.Farm, tmp_path: Path) -> None:
    port = served.free_port()
    done = tvmtune("devices", "--tracker", f"127.0.0.1:{port}", cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    output = complaint(done.stderr)
    assert f"no tracker answers at 127.0.0.1:{port}" in output and "tvmtune tracker" in output
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        threading.Thread(
            target=lambda: other.accept()[0].sendall(b"HTTP/1.1 400"), daemon=True
        ).start()
        done = tvmtune("devices", "--tracker", address, cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    assert f"what answers at {address} is not a tracker" in complaint(done.stderr)


def test_clusters_are_distinguished_by_capacity(tmp_path: Path) -> None:
    for cpu in range(6):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}"
        (folder / "cpufreq").mkdir(parents=True)
        (folder / "cpu_capacity").write_text("485\n" if cpu < 4 else "1024\n")
        (folder / "cpufreq/cpuinfo_max_freq").write_text("1416000\n" if cpu < 4 else "1800000\n")
    assert describe.clusters([0, 1, 2, 3, 4, 5], tmp_path) == [
        {"cpus": [4, 5], "max_khz": 1800000},
        {"cpus": [0, 1, 2, 3], "max_khz": 1416000},
    ]
    assert describe.clusters([0, 1], tmp_path / "nowhere") == [{"cpus": [0, 1], "max_khz": 0}]
