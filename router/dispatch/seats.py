"""The seats of both pools: each is one worker's place, which its replacement takes over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count, islice

from twinpool.types import Pool, WorkerState


@dataclass(slots=True)
class Seat:
    """One worker's place in its pool.

    state: while no session is open; the scheduler's fleet says more then. reason: why it is not up, in words.
    retired: not to be filled again. given_up: not filled for now, as it failed too often.
    draining: its worker is to empty itself. empty: it has.
    was_ready: whether a canary has ever passed through its newest worker.
    """

    worker_id: str
    pool: Pool
    state: WorkerState = WorkerState.STARTING
    node: str = ""
    reason: str = ""
    retired: bool = False
    given_up: bool = False
    in_session: bool = False
    was_ready: bool = False
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    empty: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def about(self) -> dict[str, str]:
        """What a line of the log about its worker carries."""
        return {"worker": self.worker_id, "pool": self.pool.value}

    def begin_life(self) -> None:
        """A worker is being started."""
        self.state, self.was_ready = WorkerState.STARTING, False
        self.draining.clear()
        self.empty.clear()

    def waits(self, reason: str) -> None:
        """The cluster has no room for it; an empty reason: now it has."""
        self.state = WorkerState.WAITING_FOR_NODE if reason else WorkerState.STARTING
        self.reason = reason

    def lost(self, reason: str) -> None:
        """Its worker is gone, or did not come."""
        if self.state is not WorkerState.WAITING_FOR_NODE:
            self.state = WorkerState.LOST
        self.reason = reason


@dataclass(slots=True)
class Roster:
    """All seats by worker id. has_served: whether a canary has ever passed."""

    seats: dict[str, Seat] = field(default_factory=dict)
    has_served: bool = False

    def add(self, pool: Pool, number: int) -> list[Seat]:
        """New seats, with the lowest numbers that are free."""
        names = (f"{pool}-{index}" for index in count())
        seats = [
            Seat(name, pool) for name in islice((each for each in names if each not in self.seats), number)
        ]
        self.seats |= {seat.worker_id: seat for seat in seats}
        return seats

    def proven(self, *worker_ids: str) -> None:
        """A canary has passed through these workers."""
        for worker_id in worker_ids:
            if seat := self.seats.get(worker_id):
                seat.was_ready = True

    def wanted(self, pool: Pool) -> list[Seat]:
        """A pool's seats that are to be kept."""
        return [seat for seat in self.seats.values() if seat.pool is pool and not seat.retired]
