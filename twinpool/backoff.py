"""How long to wait before the next try."""

from __future__ import annotations

from collections.abc import Sequence


def backoff_s(times_s: Sequence[float], num_failures: int) -> float:
    """The time for so many failures in a row, in seconds; the last one for all that are more."""
    return times_s[min(num_failures, len(times_s) - 1)]
