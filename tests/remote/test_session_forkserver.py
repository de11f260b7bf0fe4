"""The supervisor of a board's forkserver: one that stops is replaced, and sessions are told apart."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

import processes
from tvmtune.remote.server import session_forkserver
from tvmtune.remote.server.session_forkserver import SessionForkserver


def options(folder: Path) -> dict[str, str]:
    return {"folder": str(folder)}


def pid_of(forkserver: SessionForkserver) -> int | None:
    return forkserver._process.pid if forkserver._process is not None else None


async def begins(forkserver: SessionForkserver) -> bool:
    """Whether a session begins, and ends with its client."""
    mine, theirs = socket.socketpair()
    with theirs:
        session = await forkserver.begin(theirs)
    mine.close()
    await asyncio.wait_for(session.ended, 60)
    return True


@pytest.mark.slow
def test_an_idle_forkserver_that_stops_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(session_forkserver, "CHECK_INTERVAL", 0.5)
    monkeypatch.setattr(session_forkserver, "ANSWER_TIMEOUT", 5.0)

    async def check() -> None:
        async with SessionForkserver(options(tmp_path)) as forkserver:
            stopped = pid_of(forkserver)
            assert stopped is not None
            assert await begins(forkserver)
            assert pid_of(forkserver) == stopped
            os.kill(stopped, signal.SIGSTOP)
            for _ in range(900):
                if pid_of(forkserver) != stopped:
                    break
                await asyncio.sleep(0.1)
            assert processes.state(stopped) == ""
            await forkserver.ensure_running()
            assert await begins(forkserver)

    asyncio.run(check())


@pytest.mark.slow
def test_a_client_of_a_forkserver_that_stopped_is_refused_and_the_next_is_served(
    tmp_path, monkeypatch
):
    async def check() -> None:
        async with SessionForkserver(options(tmp_path)) as forkserver:
            stopped = pid_of(forkserver)
            assert stopped is not None
            os.kill(stopped, signal.SIGSTOP)
            monkeypatch.setattr(session_forkserver, "ANSWER_TIMEOUT", 1.0)
            with pytest.raises(OSError, match="its forkserver does not answer"):
                await begins(forkserver)
            monkeypatch.setattr(session_forkserver, "ANSWER_TIMEOUT", 30.0)
            assert processes.state(stopped) == ""
            assert await begins(forkserver)

    asyncio.run(check())


def test_a_session_that_nobody_waits_for_is_killed_and_not_given_to_another(tmp_path):
    """A report that comes late must not be taken for the session of the next client."""

    async def check(late: int) -> None:
        forkserver = SessionForkserver(options(tmp_path))
        waiting = asyncio.get_running_loop().create_future()
        forkserver._begun[7] = waiting
        forkserver._handle({"begun": late, "number": 6})
        assert not waiting.done()

    with subprocess.Popen(["sleep", "600"], start_new_session=True) as late:
        asyncio.run(check(late.pid))
        assert late.wait(60) == -signal.SIGKILL
