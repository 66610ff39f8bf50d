"""The requests that wait for a prefill worker, in the order of their places."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from router.scheduling.place import Place
from router.scheduling.requests import RequestState


class WaitingQueue:
    """Sorted by place, so that a request queued again is where it was.

    Canaries come first, since pairs wait for them; then resumed requests, whose clients' streams pause.
    """

    def __init__(self) -> None:
        self._states: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        """A snapshot: the queue may change while one walks it."""
        return iter(list(self._states))

    @property
    def num_requests(self) -> int:
        """Users' requests."""
        return sum(state.request.pair is None for state in self._states)

    @property
    def num_tokens(self) -> int:
        """Tokens of users' requests, waiting to be read."""
        return sum(state.num_tokens for state in self._states if state.request.pair is None)

    def add(self, state: RequestState) -> None:
        """Take a request in at its place."""
        bisect.insort(self._states, state, key=_order)

    def remove(self, state: RequestState) -> None:
        """Take a request out; it must be in."""
        self._states.remove(state)


def _order(state: RequestState) -> tuple[bool, bool, Place]:
    return (state.request.pair is None, not state.log, state.place)
