"""What `twinpool top` shows over time: rates and means from the sums that a server keeps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from twinpool.client.status import Status
from twinpool.totals import Totals

WINDOW_S = 180.0
"""How far back it is shown."""
RECENT_S = 10.0
"""What counts as now: short enough to see a change, long enough for a mean."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is remembered of one status. queue: requests waiting then."""

    totals: Totals
    queue: int

    @property
    def at_s(self) -> float:
        """When it was, by the server's clock."""
        return self.totals.uptime_s


Measure = Callable[[Sequence[Look]], float | None]
"""A value over looks, two at least, the earliest first; None where nothing happened that has one."""


def ttft_s(looks: Sequence[Look]) -> float | None:
    """Mean time to the first token, of those that came in between."""
    return _ratio(looks, "ttft_sum_s", "first_tokens")


def itl_s(looks: Sequence[Look]) -> float | None:
    """Mean gap between two tokens of a request."""
    return _ratio(looks, "token_gap_sum_s", "token_gaps")


def tokens_out_per_s(looks: Sequence[Look]) -> float | None:
    """Tokens sent to clients, a second."""
    return _ratio(looks, "generation_tokens", "uptime_s")


def tokens_in_per_s(looks: Sequence[Look]) -> float | None:
    """Tokens read by prefill workers, a second."""
    return _ratio(looks, "prefill_tokens", "uptime_s")


def requests_per_s(looks: Sequence[Look]) -> float | None:
    """Requests admitted, a second."""
    return _ratio(looks, "requests_admitted", "uptime_s")


def queue_depth(looks: Sequence[Look]) -> float | None:
    """Most requests seen waiting."""
    return float(max(look.queue for look in looks[1:]))


@dataclass(frozen=True, slots=True)
class Line:
    """One measure over the window. now: over the last seconds, of the queue at the last look.

    most: of all that is shown. cells: oldest first, None where unknown.
    """

    now: float | None
    most: float | None
    cells: tuple[float | None, ...]


class History:
    """The looks of the last minutes at one server, by the server's own clock.

    interval_s: seconds between two looks; a cell of a line is no shorter than two of them.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._looks: list[Look] = []

    def add(self, status: Status) -> None:
        """Take a look. What was seen of a router that is gone is forgotten: its sums were others."""
        look = Look(status.totals, status.queue.requests)
        if self._looks and look.at_s < self._looks[-1].at_s:
            self._looks.clear()
        self._looks.append(look)
        # The first cell begins up to a cell before the window, and a look before that is its beginning.
        oldest = look.at_s - 2 * WINDOW_S - 2 * self._interval_s
        del self._looks[: self._number_until(oldest)]

    def line(self, measure: Measure, num_cells: int) -> Line:
        """A measure in so many cells. They begin at whole multiples of their length, so that they stay."""
        if not self._looks:
            return Line(None, None, (None,) * num_cells)
        newest_s = self._looks[-1].at_s
        cell_s = max(WINDOW_S / num_cells, 2 * self._interval_s)
        num_shown = max(1, min(num_cells, round(WINDOW_S / cell_s)))
        last = int(newest_s / cell_s)
        bounds = [number * cell_s for number in range(last - num_shown + 1, last + 2)]
        shown = [self._between(measure, begin, min(end, newest_s)) for begin, end in pairwise(bounds)]
        now = self._now(measure, newest_s)
        return Line(
            now=now,
            most=max((value for value in (*shown, now) if value is not None), default=None),
            cells=(None,) * (num_cells - num_shown) + tuple(shown),
        )

    def _now(self, measure: Measure, newest_s: float) -> float | None:
        if measure is queue_depth and len(self._looks) > 1:
            return measure(self._looks[-2:])
        recent_s = max(RECENT_S, 2 * self._interval_s)
        return self._between(measure, max(newest_s - recent_s, self._looks[0].at_s), newest_s)

    def _between(self, measure: Measure, begin_s: float, end_s: float) -> float | None:
        """From the last look before the begin to the last before the end."""
        first, beyond = self._number_until(begin_s) - 1, self._number_until(end_s)
        if first < 0 or beyond - first < 2:
            return None
        return measure(self._looks[first:beyond])

    def _number_until(self, at_s: float) -> int:
        return bisect_right(self._looks, at_s, key=lambda look: look.at_s)


def _ratio(looks: Sequence[Look], above: str, below: str) -> float | None:
    """Growth of one sum by the growth of another."""
    first, last = looks[0].totals, looks[-1].totals
    divisor = getattr(last, below) - getattr(first, below)
    return (getattr(last, above) - getattr(first, above)) / divisor if divisor > 0 else None
