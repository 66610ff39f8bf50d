"""How fast the queue drains of late, and so when a client that found it full may come back; pure."""

from __future__ import annotations

from collections import deque

NUM_GAPS = 16
GUESS_S = 0.25
"""Stands for the gap between two starts, until so many have been seen."""
MARGIN = 1.25
"""Gaps vary, and the next one may be the longest."""
LEAST_S = 0.05
MOST_S = 60.0


class DrainRate:
    """Times are seconds on one monotonic clock.

    A client that comes back after a little more than the longest gap of late, or than the present one lasts
    already, finds that a request has left the queue. Nobody keeps the place for it: of several clients that
    come back, the first takes it.
    """

    def __init__(self) -> None:
        self._gaps = deque([GUESS_S], maxlen=NUM_GAPS)
        self._started_at: float | None = None

    def started(self, now: float, *, waiting: bool) -> None:
        """A request has left the queue for a worker. waiting: whether others still queue behind it."""
        if self._started_at is not None:
            self._gaps.append(now - self._started_at)
        # With an empty queue the time to the next start says how few come, not how fast they go.
        self._started_at = now if waiting else None

    def retry_after_s(self, now: float, num_starts: int) -> float:
        """Seconds until num_starts requests will have left the queue."""
        lasting = 0.0 if self._started_at is None else now - self._started_at
        mean = sum(self._gaps) / len(self._gaps)
        wait_s = MARGIN * max(*self._gaps, lasting) + (num_starts - 1) * mean
        return min(max(wait_s, LEAST_S), MOST_S)
