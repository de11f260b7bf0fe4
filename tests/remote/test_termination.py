"""Cancellation of tasks."""

from __future__ import annotations

import asyncio
import contextlib

from tvmtune.remote.termination import end


def test_a_task_that_swallows_cancellations_still_ends() -> None:
    lost = 0

    async def stubborn() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost += 1
                if lost == 3:
                    raise

    async def run() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await asyncio.wait_for(end([task], 0.01), 10)
        assert task.cancelled()

    asyncio.run(run())
    assert lost == 3


def test_a_finished_task_keeps_its_result() -> None:
    async def fails() -> None:
        raise OSError("no port")

    async def run() -> None:
        task = asyncio.create_task(fails())
        with contextlib.suppress(OSError):
            await task
        await end([task])
        assert isinstance(task.exception(), OSError)

    asyncio.run(run())
