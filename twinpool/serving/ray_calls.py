"""Calls of Ray's that are awaited, bounded, and never raise what nobody expects."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray

from twinpool.backoff import backoff_s

log = logging.getLogger(__name__)
KILL_TIMEOUT_S = 20.0
KILL_TRIES = 4
KILL_BACKOFF_S = (0.0, 1.0, 3.0, 10.0)


async def result(reference: Any) -> Any:
    """An actor call's result, awaited on this event loop."""
    return await reference


async def end(actor: Any) -> bool:
    """End an actor at once; one that is gone already is fine. False if all of several tries failed."""
    for num_failures in range(KILL_TRIES):
        await asyncio.sleep(backoff_s(KILL_BACKOFF_S, num_failures))
        try:
            # Blocks until the process is gone, so not on the event loop.
            await asyncio.wait_for(asyncio.to_thread(ray.kill, actor, no_restart=True), KILL_TIMEOUT_S)
            return True
        except Exception as error:  # noqa: BLE001 (Ray may fail in any way while its head is away)
            log.error("an actor could not be ended: %r", error)
    return False


def last_line(error: BaseException) -> str:
    """Ray's errors carry a whole traceback; its last line says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
