"""Calls of Ray's that are awaited, bounded, and never raise what nobody expects."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray

log = logging.getLogger(__name__)
KILL_TIMEOUT_S = 20.0


async def result(reference: Any) -> Any:
    """An actor call's result, awaited on this event loop."""
    return await reference


async def end(actor: Any) -> None:
    """End an actor at once, within KILL_TIMEOUT_S; one that is gone already is fine."""
    try:
        # Blocks until the process is gone, so not on the event loop.
        await asyncio.wait_for(asyncio.to_thread(ray.kill, actor, no_restart=True), KILL_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 (whatever it is, its caller can do nothing more)
        log.error("an actor could not be ended: %r", error)


def last_line(error: BaseException) -> str:
    """Ray's errors carry a whole traceback; its last line says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
