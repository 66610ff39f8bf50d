"""The choices that wait for a prefill worker, in the order of their requests' places."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from router.scheduling.place import Place
from router.scheduling.requests import Choice


class WaitingQueue:
    """Sorted by place, so that a choice queued again is where it was.

    Canaries come first, since pairs wait for them; then resumed ones, whose clients' streams pause.
    """

    def __init__(self) -> None:
        self._choices: list[Choice] = []

    def __len__(self) -> int:
        return len(self._choices)

    def __iter__(self) -> Iterator[Choice]:
        """A snapshot: the queue may change while one walks it."""
        return iter(list(self._choices))

    @property
    def num_requests(self) -> int:
        """Users' requests."""
        return len({choice.request_id for choice in self._choices if not choice.request.is_canary})

    @property
    def num_tokens(self) -> int:
        """Tokens of users' requests, waiting to be read."""
        return sum(choice.num_tokens for choice in self._choices if not choice.request.is_canary)

    def add(self, choice: Choice) -> None:
        """Take a choice in at its place."""
        bisect.insort(self._choices, choice, key=_order)

    def remove(self, choice: Choice) -> None:
        """Take a choice out; it must be in."""
        self._choices.remove(choice)


def _order(choice: Choice) -> tuple[bool, bool, Place]:
    return (not choice.request.is_canary, not choice.log, choice.place)
