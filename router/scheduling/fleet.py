"""The workers and pairs the scheduler may use, and how full they are."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from twinpool.backoff import backoff_s
from twinpool.kv.blocks import blocks_for, leaves_rows_room
from twinpool.session.messages import Hello, LoadReport
from twinpool.types import HandoffId, HolderId, Pool

REJOIN_BACKOFF_S = (0.5, 1.0, 2.0, 5.0)
STUCK_STEPS = 10
RECENT_STEPS = 16
PROBE_AGAIN_S = 60.0
"""A pair that no canary has proven by then is joined, and so probed, again; longer than a canary takes."""
JOIN_AGAIN_S = 300.0
"""A pair of which nothing was heard by then is joined anew; joining touches all of a cache, however large."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker with an open session.

    charged: blocks counted for hand-offs that the worker's newest report may not show yet. On a prefill
    worker that is every one from placing to PrefillEnded; on a decode worker every reservation not
    answered yet.
    leaving: whom a decode worker was told to drop and has not reported gone.
    steps_s: how long its newest steps took, as far as they were reported.
    progressed_at: when its engine was last seen to move. replaced_at: when its replacement was asked for.
    stuck: its engine has stood still for too long, or its replacement was asked for, and the engine has not
    moved since; whatever else it says, it gets nothing new.
    overdue: a hand-off whose revoked blocks it does not let go of, as was said at overdue_at.
    suspected: a hand-off's connection with it has ended, and it has said nothing since. It may be dead, and
    gets nothing new until it speaks, so that one death costs a request one attempt.
    proven: a canary has been through it.
    drains_until: set once it is to leave: nothing new goes to it, and what it has then is set back.
    """

    worker_id: str
    hello: Hello
    load: LoadReport
    progressed_at: float
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    charged: dict[HandoffId, int] = field(default_factory=dict)
    leaving: set[HolderId] = field(default_factory=set)
    replaced_at: float = -math.inf
    stuck: bool = False
    overdue: str = ""
    overdue_at: float = -math.inf
    suspected: bool = False
    proven: bool = False
    drains_until: float | None = None

    @property
    def draining(self) -> bool:
        """Whether it is to leave."""
        return self.drains_until is not None

    @property
    def takes_new(self) -> bool:
        """Whether it may be given anything new."""
        return not (self.draining or self.suspected or self.stuck)

    @property
    def pool(self) -> Pool:
        """Its pool."""
        return self.hello.pool

    @property
    def incarnation(self) -> str:
        """Its life."""
        return self.hello.incarnation

    @property
    def blocks_free(self) -> int:
        """Blocks that nothing is known to have a claim on."""
        free = self.hello.blocks_total if self.pool is Pool.PREFILL else self.load.blocks_free
        return free - sum(self.charged.values())

    def may_reserve(self, num_blocks: int) -> bool:
        """Whether a decode worker will set so many blocks aside; it judges the same way, by newer counts."""
        return leaves_rows_room(num_blocks, free=self.blocks_free, num_rows=self.load.running)

    @property
    def num_rows(self) -> int:
        """Rows of a decode worker: those it steps, those it has set room aside for, those asked for."""
        return self.load.running + self.load.waiting + len(self.charged)

    def take_load(self, load: LoadReport, now: float) -> None:
        """A newer report."""
        if load.progress != self.load.progress:
            self.progressed_at = now
            self.stuck = False
        if load.step_s != self.load.step_s:
            self.steps_s.append(load.step_s)
        self.load = load

    def stands_still(self, now: float, least_s: float) -> bool:
        """Whether its engine has stood still for least_s seconds, and for ten times its longest recent step.

        Steps differ: a canary's takes milliseconds, a full chunk of a large model seconds. Of a step longer
        than any before nothing need be known, as the engine's progress moves with each layer of the model.
        """
        return now - self.progressed_at > max(least_s, STUCK_STEPS * max(self.steps_s, default=0.0))

    @property
    def capacity_tokens(self) -> int:
        """Tokens its whole pool holds."""
        return self.hello.blocks_total * self.hello.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens take here."""
        return blocks_for(num_tokens, self.hello.block_size)


@dataclass(slots=True, eq=False)
class Pair:
    """A prefill worker's connection to a decode worker. transport is empty while it is not joined.

    joining: the prefill worker has been told to open it, and has not said how that went.
    """

    prefill: Worker
    decode: Worker
    transport: str = ""
    joining: bool = False
    proven: bool = False
    num_failures: int = 0
    rejoin_at: float | None = None

    @property
    def usable(self) -> bool:
        """Whether it may take users' requests."""
        return self.proven and not self.draining

    @property
    def draining(self) -> bool:
        """Whether one of its workers is to leave; then nobody joins, probes or uses it any more."""
        return self.prefill.draining or self.decode.draining

    def broke(self, now: float) -> None:
        """It is not usable; join again after a while."""
        self.transport = ""
        self.joining = self.proven = False
        self.rejoin_at = now + backoff_s(REJOIN_BACKOFF_S, self.num_failures)
        self.num_failures += 1


class Fleet:
    """All workers with open sessions, and all pairs between them."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._pairs: dict[tuple[str, str], Pair] = {}

    def add(self, worker_id: str, hello: Hello, now: float) -> list[Pair]:
        """A worker is up; the new pairs, to be joined."""
        load = LoadReport(blocks_free=hello.blocks_total)
        worker = Worker(worker_id, hello, load, now)
        others = self.staying(Pool.DECODE if worker.pool is Pool.PREFILL else Pool.PREFILL)
        self._workers[worker_id] = worker
        prefill_first = worker.pool is Pool.PREFILL
        pairs = [Pair(worker, other) if prefill_first else Pair(other, worker) for other in others]
        self._pairs |= {(pair.prefill.worker_id, pair.decode.worker_id): pair for pair in pairs}
        return pairs

    def remove(self, worker_id: str) -> None:
        """A worker and its pairs are gone."""
        del self._workers[worker_id]
        self._pairs = {ids: pair for ids, pair in self._pairs.items() if worker_id not in ids}

    def worker(self, worker_id: str | None) -> Worker | None:
        """A worker by its id."""
        return self._workers.get(worker_id) if worker_id else None

    def by_incarnation(self, incarnation: str) -> Worker | None:
        """A worker by its life."""
        return next((each for each in self._workers.values() if each.incarnation == incarnation), None)

    def pool(self, pool: Pool) -> list[Worker]:
        """A pool's workers."""
        return [worker for worker in self._workers.values() if worker.pool is pool]

    def staying(self, pool: Pool) -> list[Worker]:
        """A pool's workers that are not to leave."""
        return [worker for worker in self.pool(pool) if not worker.draining]

    def workers(self) -> Iterator[Worker]:
        """All workers."""
        return iter(self._workers.values())

    def pair(self, prefill_id: str, decode_id: str) -> Pair | None:
        """A pair by its workers' ids."""
        return self._pairs.get((prefill_id, decode_id))

    def pairs(self) -> Iterator[Pair]:
        """All pairs."""
        return iter(self._pairs.values())

    def serves(self) -> bool:
        """Whether at least one pair may take users' requests."""
        return any(pair.usable for pair in self._pairs.values())

    def capacity_tokens(self) -> int:
        """Most tokens of one request that fit either side's whole pool; 0 without workers."""
        sides = [self.pool(Pool.PREFILL), self.pool(Pool.DECODE)]
        return min(max((worker.capacity_tokens for worker in side), default=0) for side in sides)
