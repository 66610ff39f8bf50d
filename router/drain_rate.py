"""How fast the queue drains of late, and so when a client that found it full may come back; pure."""

from __future__ import annotations

from collections import deque

NUM_GAPS = 16
GUESS_S = 1.0
"""Stands for gaps between two starts until so many have been seen."""
MOST_AHEAD = 32
"""Clients sent away, one after the other, that are told ever later times; beyond, they share the last."""
LEAST_S = 0.05
MOST_S = 60.0


class DrainRate:
    """Times are seconds on one monotonic clock.

    A client that comes back after the longest gap of late, or as much later as the present one lasts already,
    finds that a request has left the queue. Each further client is told a time later by the mean gap, so that
    they do not all come back for the same place.
    """

    def __init__(self) -> None:
        self._gaps = deque([GUESS_S], maxlen=NUM_GAPS)
        self._started_at: float | None = None
        self._promised = 0.0

    def started(self, now: float, *, waiting: bool) -> None:
        """A request has left the queue for a worker. waiting: whether others still queue behind it."""
        if self._started_at is not None:
            self._gaps.append(now - self._started_at)
        # With an empty queue the time to the next start says how few come, not how fast they go.
        self._started_at = now if waiting else None

    def retry_after_s(self, now: float, num_starts: int) -> float:
        """Seconds until num_starts requests have left; the next client to ask is told of the next place."""
        lasting = 0.0 if self._started_at is None else now - self._started_at
        mean = sum(self._gaps) / len(self._gaps)
        earliest = now + max(*self._gaps, lasting) + (num_starts - 1) * mean
        self._promised = min(max(earliest, self._promised + mean), earliest + MOST_AHEAD * mean)
        return min(max(self._promised - now, LEAST_S), MOST_S)
