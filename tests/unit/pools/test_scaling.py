"""What operators do to the pools: sizes, which workers leave, and renewing them one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from router.dispatch.seats import Roster, Seat
from router.pools import scaling
from router.pools.scaling import MOST_WORKERS, Scaling
from router.telemetry.metrics import Metrics
from tests.support.router.fakes import DECODE, SNAPSHOT
from twinpool.config import RouterConfig, ServeConfig
from twinpool.errors import InvalidRequest, StartFailed, UnknownWorker
from twinpool.types import Pool, WorkerState
from twinpool.views import Snapshot


class FakeKeeper:
    """Notes what it is told, and adds seats; what it removes stays until a test lets it go."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.removed: list[str] = []
        self.renewed: list[str] = []

    def add(self, pool: Pool, number: int) -> None:
        self._roster.add(pool, number)

    def remove(self, seat: Seat) -> None:
        seat.retired = True
        self.removed.append(seat.worker_id)

    def renew(self, seat: Seat) -> None:
        self.renewed.append(seat.worker_id)


class Pools:
    """Scaling over pools of one prefill and so many decode workers, all ready."""

    def __init__(self, decode: int = 1) -> None:
        self.roster = Roster()
        self.keeper = FakeKeeper(self.roster)
        self.metrics = Metrics()
        self.views: dict[str, tuple[WorkerState, int]] = {}
        config = ServeConfig(router=RouterConfig(grace_s=4.0))
        keeper: Any = self.keeper
        self.scaling = Scaling(config, self.roster, keeper, self.metrics, self.snapshot)
        for pool, size in ((Pool.PREFILL, 1), (Pool.DECODE, decode)):
            self.roster.add(pool, size)
        for worker_id in self.roster.seats:
            self.views[worker_id] = (WorkerState.READY, 1)

    def snapshot(self) -> Snapshot:
        views = (
            replace(DECODE, id=worker_id, state=state, incarnation=f"{worker_id}-{life}")
            for worker_id, (state, life) in self.views.items()
        )
        return replace(SNAPSHOT, workers=tuple(views))

    def are(self, state: WorkerState, *worker_ids: str) -> None:
        for worker_id in worker_ids:
            self.views[worker_id] = (state, self.views[worker_id][1])

    def has_new_life(self, worker_id: str, state: WorkerState = WorkerState.READY) -> None:
        self.views[worker_id] = (state, self.views[worker_id][1] + 1)

    def scaled(self, direction: str, pool: Pool = Pool.DECODE) -> float | None:
        labels = {"pool": pool.value, "direction": direction}
        return self.metrics.registry.get_sample_value("twinpool_scale_events_total", labels)


# Sizes.


def test_a_larger_pool_gets_new_seats() -> None:
    pools = Pools()
    assert pools.scaling.set_size(Pool.DECODE, 3) == 1
    assert pools.scaling.all_of(Pool.DECODE) == ["decode-0", "decode-1", "decode-2"]
    assert (pools.scaled("up"), pools.scaled("down")) == (1, 0)


def test_the_same_size_changes_nothing() -> None:
    pools = Pools(decode=2)
    assert pools.scaling.set_size(Pool.DECODE, 2) == 2
    assert pools.keeper.removed == []
    assert (pools.scaled("up"), pools.scaled("down")) == (0, 0)


def test_a_smaller_pool_loses_the_youngest_names_first() -> None:
    pools = Pools(decode=12)
    assert pools.scaling.set_size(Pool.DECODE, 9) == 12
    assert pools.keeper.removed == ["decode-11", "decode-10", "decode-9"]
    assert pools.scaled("down") == 1


@pytest.mark.parametrize(
    "state", [WorkerState.STARTING, WorkerState.WARMING, WorkerState.WAITING_FOR_NODE, WorkerState.LOST]
)
def test_a_smaller_pool_loses_those_first_that_do_not_serve(state: WorkerState) -> None:
    pools = Pools(decode=4)
    pools.are(state, "decode-0")
    pools.scaling.set_size(Pool.DECODE, 2)
    assert pools.keeper.removed == ["decode-0", "decode-3"]


def test_what_leaves_already_counts_no_more() -> None:
    pools = Pools(decode=3)
    pools.scaling.set_size(Pool.DECODE, 2)
    assert pools.scaling.set_size(Pool.DECODE, 2) == 2
    assert pools.keeper.removed == ["decode-2"]
    assert pools.scaling.set_size(Pool.DECODE, 3) == 2
    assert pools.scaling.all_of(Pool.DECODE) == ["decode-0", "decode-1", "decode-3"]


@pytest.mark.parametrize("size", [-1, 0, MOST_WORKERS + 1])
def test_a_size_that_no_pool_has_is_refused(size: int) -> None:
    pools = Pools()
    with pytest.raises(InvalidRequest, match=str(size)) as refused:
        pools.scaling.set_size(Pool.DECODE, size)
    assert refused.value.field == "size"
    assert pools.scaling.all_of(Pool.DECODE) == ["decode-0"]


# One worker leaves.


def test_a_drained_worker_makes_its_pool_smaller() -> None:
    pools = Pools(decode=2)
    pools.scaling.drain("decode-0")
    assert pools.keeper.removed == ["decode-0"]
    assert pools.scaling.all_of(Pool.DECODE) == ["decode-1"]
    assert pools.scaled("down") == 1


def test_a_worker_that_drains_already_is_not_told_again() -> None:
    pools = Pools(decode=3)
    pools.scaling.drain("decode-0")
    pools.scaling.drain("decode-0")
    assert pools.keeper.removed == ["decode-0"]


def test_a_pools_only_worker_may_not_leave() -> None:
    pools = Pools(decode=2)
    pools.scaling.drain("decode-1")
    for worker_id in ("decode-0", "prefill-0"):
        with pytest.raises(InvalidRequest, match=f"{worker_id} is its pool's only worker"):
            pools.scaling.drain(worker_id)


def test_a_worker_that_is_none_cannot_drain() -> None:
    with pytest.raises(UnknownWorker, match="decode-7"):
        Pools().scaling.drain("decode-7")


# Renewing.


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "POLL_S", 0.0)


async def renew(pools: Pools, worker_ids: Iterable[str]) -> list[tuple[str, str]]:
    return [renewed async for renewed in pools.scaling.renew(list(worker_ids))]


async def until_renewed(pools: Pools, *worker_ids: str) -> None:
    while pools.keeper.renewed != list(worker_ids):
        await asyncio.sleep(0)


async def turns(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_workers_are_renewed_one_at_a_time() -> None:
    pools = Pools(decode=2)
    work = asyncio.create_task(renew(pools, ["decode-0", "decode-1"]))
    await until_renewed(pools, "decode-0")
    pools.are(WorkerState.DRAINING, "decode-0")
    await turns()
    pools.has_new_life("decode-0", WorkerState.WARMING)
    await turns()
    assert pools.keeper.renewed == ["decode-0"]
    pools.are(WorkerState.READY, "decode-0")
    await until_renewed(pools, "decode-0", "decode-1")
    pools.has_new_life("decode-1")
    assert await work == [("decode-0", "decode-0-2"), ("decode-1", "decode-1-2")]


async def test_two_operators_do_not_renew_at_once() -> None:
    pools = Pools(decode=2)
    first = asyncio.create_task(renew(pools, ["decode-0"]))
    await until_renewed(pools, "decode-0")
    second = asyncio.create_task(renew(pools, ["decode-1"]))
    await turns()
    assert pools.keeper.renewed == ["decode-0"]
    pools.has_new_life("decode-0")
    await first
    await until_renewed(pools, "decode-0", "decode-1")
    pools.has_new_life("decode-1")
    assert await second == [("decode-1", "decode-1-2")]


async def test_a_worker_that_is_starting_is_started_anew_once_it_is_up() -> None:
    pools = Pools()
    pools.are(WorkerState.STARTING, "decode-0")
    work = asyncio.create_task(renew(pools, ["decode-0"]))
    await turns()
    assert pools.keeper.renewed == []
    pools.are(WorkerState.READY, "decode-0")
    await until_renewed(pools, "decode-0")
    pools.has_new_life("decode-0")
    assert await work == [("decode-0", "decode-0-2")]


@pytest.mark.parametrize("state", [WorkerState.WAITING_FOR_NODE, WorkerState.LOST])
async def test_a_worker_that_has_yet_to_start_is_new_once_it_is_ready(state: WorkerState) -> None:
    pools = Pools()
    pools.are(state, "decode-0")
    work = asyncio.create_task(renew(pools, ["decode-0"]))
    await until_renewed(pools, "decode-0")
    pools.are(WorkerState.READY, "decode-0")
    assert await work == [("decode-0", "decode-0-1")]


async def test_a_worker_that_left_meanwhile_is_passed_over() -> None:
    pools = Pools(decode=2)
    work = asyncio.create_task(renew(pools, ["decode-0", "decode-1"]))
    await until_renewed(pools, "decode-0")
    pools.scaling.drain("decode-1")
    pools.has_new_life("decode-0")
    assert await work == [("decode-0", "decode-0-2")]


async def test_an_unknown_worker_is_refused_before_the_first_is_renewed() -> None:
    pools = Pools()
    with pytest.raises(UnknownWorker, match="decode-7"):
        await renew(pools, ["decode-0", "decode-7"])
    assert pools.keeper.renewed == []


async def test_a_worker_that_is_given_up_meanwhile_is_an_error() -> None:
    pools = Pools()
    work = asyncio.create_task(renew(pools, ["decode-0"]))
    await until_renewed(pools, "decode-0")
    pools.roster.seats.pop("decode-0").reason = "no memory"
    with pytest.raises(StartFailed, match="decode-0 was given up: no memory"):
        await work


async def test_a_worker_that_is_removed_while_it_is_renewed_is_an_error() -> None:
    pools = Pools(decode=2)
    work = asyncio.create_task(renew(pools, ["decode-0"]))
    await until_renewed(pools, "decode-0")
    pools.scaling.drain("decode-0")
    pools.roster.seats.pop("decode-0").reason = "it was drained"
    with pytest.raises(StartFailed, match="decode-0 was removed meanwhile: it was drained"):
        await work


async def test_a_worker_that_does_not_become_ready_in_time_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = Pools()
    pools.roster.seats["decode-0"].reason = "no node has room"
    monkeypatch.setattr(scaling, "MARGIN_S", -124.0)
    with pytest.raises(StartFailed, match="decode-0 is not ready again: no node has room"):
        await renew(pools, ["decode-0"])


async def test_whoever_listens_no_more_lets_the_next_one_renew() -> None:
    pools = Pools(decode=2)
    listening = pools.scaling.renew(["decode-0", "decode-1"])
    first = asyncio.create_task(anext(listening))
    await until_renewed(pools, "decode-0")
    pools.has_new_life("decode-0")
    await first
    await listening.aclose()
    again = asyncio.create_task(renew(pools, ["decode-1"]))
    await until_renewed(pools, "decode-0", "decode-1")
    pools.has_new_life("decode-1")
    assert await again == [("decode-1", "decode-1-2")]
