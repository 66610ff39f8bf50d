"""Measures how late the event loop runs its timers: what each of its users waits on top of all else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

INTERVAL_S = 0.25


async def measure_loop_lag(
    lagged: Callable[[float], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Set a timer, over and over, and tell `lagged` by how many seconds it was late; never returns."""
    while True:
        due = clock() + INTERVAL_S
        await sleep(INTERVAL_S)
        # The loop's clock is coarser than ours: a timer may fire a little early.
        lagged(max(0.0, clock() - due))
