"""A keeper of pools whose launcher, workers and dispatcher do what a test says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from router.dispatch.seats import Roster
from router.pools import keeper
from router.pools.keeper import PoolKeeper
from router.pools.launcher import StartedWorker
from router.scheduling.commands import Drained
from router.telemetry.metrics import Metrics
from twinpool.config import RouterConfig, ServeConfig
from twinpool.errors import StartFailed
from twinpool.session.messages import Hello
from twinpool.types import Pool

MOST_TURNS = 1000
BACKOFF_S = keeper.BACKOFF_S
"""As they are, whatever a test makes of them."""


class Backoff:
    """No time at all, and a note of which time was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(BACKOFF_S)

    def __getitem__(self, index: int) -> float:
        self.asked.append(index)
        return 0.0


async def until(holds: Callable[[], object]) -> None:
    """Let everything else run until this holds."""
    for _ in range(MOST_TURNS):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come to hold")


async def rest() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


def _future() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False)
class Life:
    """One life of a worker. ended: how its process ends; session_over: how its session does."""

    worker: StartedWorker
    ended: asyncio.Future[str] = field(default_factory=_future)
    session_over: asyncio.Future[str] = field(default_factory=_future)
    stopped: bool = False
    killed: bool = False
    released: bool = False

    @property
    def is_over(self) -> bool:
        return self.stopped or self.killed


class FakeLauncher:
    """trouble: what the next starts raise. may_start, may_take_over: held back while not set.
    may_end: the same for the ends of workers, by worker id.
    attached: whether the next that start were up before.

    spared: seats whose survivors were not ended when it was last asked to end them.
    taken_over: what it says when a worker speaks of another router.
    """

    secret = "a secret"

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.trouble: deque[Exception] = deque()
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.may_take_over = asyncio.Event()
        self.may_take_over.set()
        self.may_end: dict[str, asyncio.Event] = {}
        self.attached = False
        self.seats: dict[str, Pool] = {}
        self.spared: list[str] = []
        self.num_starts = 0
        self.says_waiting = ""
        self.taken_over = True

    async def is_taken_over(self) -> bool:
        return self.taken_over

    def life(self, worker_id: str) -> Life:
        """The newest of a seat's."""
        return next(life for life in reversed(self.lives) if life.worker.worker_id == worker_id)

    async def take_over(self, seats: Mapping[str, Pool]) -> None:
        self.seats = dict(seats)
        await self.may_take_over.wait()

    async def end_survivors(self, except_for: Collection[str] = ()) -> None:
        self.spared = list(except_for)

    async def start(self, worker_id: str, pool: Pool, waits: Callable[[str], None]) -> StartedWorker:
        self.num_starts += 1
        if self.says_waiting:
            waits(self.says_waiting)
        await self.may_start.wait()
        if self.trouble:
            raise self.trouble.popleft()
        incarnation = f"{worker_id}-{len(self.lives)}"
        worker = StartedWorker(
            worker_id, pool, incarnation, address=incarnation, node="node-1", attached=self.attached
        )
        self.lives.append(Life(worker))
        return worker

    async def wait_for_exit(self, worker: StartedWorker) -> str:
        return await asyncio.shield(self._of(worker).ended)

    async def stop(self, worker: StartedWorker) -> bool:
        if gate := self.may_end.get(worker.worker_id):
            await gate.wait()
        life = self._of(worker)
        life.stopped = not life.released
        return life.stopped

    async def kill(self, worker: StartedWorker) -> bool:
        if gate := self.may_end.get(worker.worker_id):
            await gate.wait()
        life = self._of(worker)
        life.killed = not life.released
        if not life.ended.done():
            life.ended.set_result("it was killed")
        return life.killed

    def release(self, worker: StartedWorker) -> None:
        self._of(worker).released = True

    def _of(self, worker: StartedWorker) -> Life:
        return next(life for life in self.lives if life.worker is worker)


class FakeSession:
    """A session with the worker that an address names. refuses: whether none opens.

    answers: the incarnation that is found there, if not the worker's own.
    """

    refuses = False
    answers = ""
    launcher: FakeLauncher

    def __init__(self, address: str, secret: str) -> None:
        assert secret == FakeLauncher.secret
        self._life = next(life for life in self.launcher.lives if life.worker.address == address)

    async def open(self, timeout_s: float) -> Hello:
        if self.refuses:
            raise StartFailed("no session")
        worker = self._life.worker
        return Hello(worker.pool, self.answers or worker.incarnation, 1, 8, 4, 64)

    async def run(self, listener: object) -> str:
        return await asyncio.shield(self._life.session_over)

    async def close(self) -> None:
        """Nothing is open."""


class FakeDispatcher:
    """Notes what it is told. up: worker ids."""

    def __init__(self) -> None:
        self.up: set[str] = set()
        self.down: list[str] = []
        self.gone: list[tuple[Pool, str]] = []
        self.closed: list[str] = []
        self.drains: list[tuple[str, float]] = []
        self.given_up: dict[Pool | None, str] = {}

    def worker_up(self, worker_id: str, hello: Hello, session: object) -> None:
        self.up.add(worker_id)

    def worker_down(self, worker_id: str, incarnation: str, reason: str) -> None:
        self.down.append(incarnation)
        self.up.discard(worker_id)

    def worker_gone(self, pool: Pool, incarnation: str) -> None:
        self.gone.append((pool, incarnation))

    def worker_said(self, worker_id: str, incarnation: str, event: object) -> None:
        """Nobody listens."""

    def seat_closed(self, worker_id: str) -> None:
        self.closed.append(worker_id)

    def drain_worker(self, worker_id: str, grace_s: float) -> None:
        self.drains.append((worker_id, grace_s))

    def give_up(self, pool: Pool | None, message: str) -> None:
        self.given_up[pool] = message

    def take_back(self, pool: Pool) -> None:
        self.given_up.pop(pool, None)


class Kept:
    """A keeper among fakes."""

    def __init__(self, prefill: int = 1, decode: int = 1, *, crash_loop_limit: int = 3) -> None:
        self.launcher = FakeLauncher()
        self.dispatcher = FakeDispatcher()
        self.roster = Roster()
        self.metrics = Metrics()
        self.broken: list[BaseException] = []
        router = RouterConfig(grace_s=4.0, crash_loop_limit=crash_loop_limit)
        config = ServeConfig(prefill=prefill, decode=decode, router=router)
        dispatcher: Any = self.dispatcher
        self.keeper = PoolKeeper(
            config,
            self.launcher,
            dispatcher,
            self.roster,
            self.metrics,
            lambda words: None,
            self.broken.append,
        )

    def is_up(self, *worker_ids: str) -> bool:
        return self.dispatcher.up.issuperset(worker_ids)

    async def start(self) -> None:
        """All workers come up, and serve."""
        self.keeper.start()
        await until(lambda: self.is_up(*self.roster.seats))
        for seat in self.roster.seats.values():
            seat.was_ready = True

    async def is_another_life(self, worker_id: str, before: Life) -> Life:
        """The next life of a seat, once it is up."""
        await until(lambda: self.launcher.life(worker_id) is not before and self.is_up(worker_id))
        return self.launcher.life(worker_id)

    def says_empty(self, worker_id: str) -> None:
        self.keeper.drained(Drained(worker_id, self.launcher.life(worker_id).worker.incarnation))

    def restarts(self, pool: Pool, reason: str) -> float:
        labels = {"pool": pool.value, "reason": reason}
        return self.metrics.registry.get_sample_value("twinpool_worker_restarts_total", labels) or 0.0


Keep = Callable[..., Awaitable[Kept]]
"""Makes keepers of so many seats; see `keep` among the fixtures of the tests of pools."""
