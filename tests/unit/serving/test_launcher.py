"""Which workers a router ends on a cluster it shares: its own, and none that another has taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from router.pools.launcher import StartedWorker
from twinpool.config import ServeConfig
from twinpool.errors import StartFailed, TakenOver
from twinpool.serving import launcher as launchers
from twinpool.serving.cluster import Cluster
from twinpool.serving.launcher import BUILDERS, RayLauncher
from twinpool.types import Pool
from twinpool.worker.spec import WorkerSpec


class FakeMethod:
    """An actor's method: its calls are awaited."""

    def __init__(self, does: Callable[..., Any]) -> None:
        self._does = does

    def remote(self, *arguments: Any) -> Any:
        async def answer() -> Any:
            answered = self._does(*arguments)
            return await answered if asyncio.isfuture(answered) else answered

        return answer()


class FakeActor:
    """One life of a worker, as `WorkerActor` lives it. loaded: called as it has loaded."""

    def __init__(self, spec: WorkerSpec, loaded: Callable[[FakeActor], None]) -> None:
        self.spec = spec
        self.router = spec.router
        self.exits: list[asyncio.Future[bool]] = []
        self.node = FakeMethod(lambda: "node-1")
        self.load = FakeMethod(lambda: self._load(loaded))
        self.wait = FakeMethod(self._wait)
        self.give_up = FakeMethod(lambda router: router == self.router)

    def _load(self, loaded: Callable[[FakeActor], None]) -> dict[str, Any]:
        loaded(self)
        about = {"worker_id": self.spec.worker_id, "pool": "decode", "incarnation": self.spec.incarnation}
        return about | {"host": "127.0.0.1", "port": 4711, "node": "node-1"}

    def _wait(self) -> asyncio.Future[bool]:
        self.exits.append(asyncio.get_running_loop().create_future())
        return self.exits[-1]


class Shared:
    """A launcher on a cluster that it shares, among fakes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors: list[FakeActor] = []
        self.ended: list[FakeActor] = []
        self.is_lost = False
        self.loaded: Callable[[FakeActor], None] = lambda actor: None
        monkeypatch.setattr(launchers, "end", self._end)
        model: Any = SimpleNamespace(folder="/model", digest="")
        self.launcher = RayLauncher(ServeConfig(), Cluster(is_local=False), model, "float32", BUILDERS)
        claim: Any = SimpleNamespace(is_lost=self._is_lost)
        actors: Any = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._create))
        self.launcher._claim, self.launcher._actor_class = claim, actors

    async def start(self) -> StartedWorker:
        return await self.launcher.start("decode-0", Pool.DECODE, lambda reason: None)

    async def _is_lost(self) -> bool:
        return self.is_lost

    async def _end(self, actor: FakeActor) -> bool:
        self.ended.append(actor)
        return True

    def _create(self, spec: WorkerSpec, build: object) -> FakeActor:
        self.actors.append(FakeActor(spec, self.loaded))
        return self.actors[-1]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Shared:
    return Shared(monkeypatch)


async def test_a_worker_taken_over_as_it_has_loaded_lives(shared: Shared) -> None:
    def taken_over(actor: FakeActor) -> None:
        actor.router, shared.is_lost = "newer", True

    shared.loaded = taken_over
    with pytest.raises(TakenOver):
        await shared.start()
    assert shared.ended == []


async def test_a_worker_that_the_newer_router_has_not_seen_is_ended(shared: Shared) -> None:
    def claimed(actor: FakeActor) -> None:
        shared.is_lost = True

    shared.loaded = claimed
    with pytest.raises(TakenOver):
        await shared.start()
    assert shared.ended == shared.actors


async def test_a_worker_that_fails_to_load_is_ended(shared: Shared) -> None:
    def fail(actor: FakeActor) -> None:
        raise OSError("no memory")

    shared.loaded = fail
    with pytest.raises(StartFailed, match="no memory"):
        await shared.start()
    assert shared.ended == shared.actors


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_worker_that_was_taken_over_is_let_go_instead_of_ended(shared: Shared, end: str) -> None:
    worker = await shared.start()
    shared.actors[0].router = "newer"
    await getattr(shared.launcher, end)(worker)
    assert shared.ended == []
    assert await shared.launcher.wait_for_exit(worker) == "it was ended"


async def test_an_exit_may_be_awaited_twice_and_of_a_worker_let_go_meanwhile(shared: Shared) -> None:
    worker = await shared.start()
    (actor,) = shared.actors
    waiting = [asyncio.create_task(shared.launcher.wait_for_exit(worker)) for _ in range(2)]
    await rest()
    actor.exits[0].set_result(False)  # an older router has asked
    await rest()
    assert len(actor.exits) == 2
    actor.exits[1].set_result(True)
    assert await asyncio.gather(*waiting) == ["it was stopped"] * 2

    worker = await shared.start()
    waits = asyncio.create_task(shared.launcher.wait_for_exit(worker))
    await rest()
    shared.actors[1].exits[0].set_result(False)
    shared.launcher.release(worker)
    assert await waits == "it was ended"


async def rest() -> None:
    """Until nothing moves any more."""
    for _ in range(10):
        await asyncio.sleep(0)
