"""What becomes of a call's deadline; its client watches the same one, and starts it a little earlier."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from twinpool.errors import DeadlineExceeded

T = TypeVar("T")
TELL_S = 0.1
"""A deadline ends a request this much early, so that its client hears of the phase before it gives up."""
SLACK_S = 0.05
"""With so little left when its client goes, it is the deadline that has passed."""


def timeout_s(time_left_s: float | None) -> float | None:
    """Seconds that a request may take for a client that waits so long; None: as long as the server does."""
    if time_left_s is None:
        return None
    return max(0.0, time_left_s - min(TELL_S, time_left_s * 0.2))


def passed(time_left_s: float | None) -> bool:
    """Whether a client that has gone went because of its deadline."""
    return time_left_s is not None and time_left_s < SLACK_S


async def in_time(preparing: Awaitable[T], timeout_s: float | None) -> T:
    """What is made of a request, if it is made in time. Raises DeadlineExceeded: until then it is queued."""
    try:
        async with asyncio.timeout(timeout_s):
            return await preparing
    except TimeoutError:
        raise DeadlineExceeded("the deadline passed while its text waited", phase="queue") from None
