"""Requests on their way to the dispatcher, so that an abort reaches one that is still being tokenized."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from twinpool.errors import DuplicateRequestId


@dataclass(slots=True)
class Arrival:
    """One request. aborted: it must end as soon as the dispatcher has it."""

    aborted: bool = False


class Arrivals:
    """Registers arriving requests by id; belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._arrivals: dict[str, Arrival] = {}

    @contextmanager
    def arriving(self, request_id: str) -> Iterator[Arrival]:
        """Register a request until it is submitted or refused. Raises DuplicateRequestId."""
        if request_id in self._arrivals:
            raise DuplicateRequestId(f"request {request_id!r} is in flight")
        arrival = self._arrivals[request_id] = Arrival()
        try:
            yield arrival
        finally:
            del self._arrivals[request_id]

    def abort(self, request_id: str) -> bool:
        """Mark a request as aborted; False if it is not arriving, or is marked already: it is ended once."""
        arrival = self._arrivals.get(request_id)
        if arrival is None or arrival.aborted:
            return False
        arrival.aborted = True
        return True
