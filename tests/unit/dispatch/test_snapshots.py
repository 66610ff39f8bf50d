"""What operators see: every seat, up or not, and only users' requests."""

from __future__ import annotations

import pytest

from router.dispatch.seats import Roster, Seat
from router.dispatch.snapshots import take_snapshot
from tests.support.router.small_fleet import PROMPT, SmallFleet, request
from twinpool.session import messages as m
from twinpool.types import Pool, WorkerState
from twinpool.views import PairView


def roster(*worker_ids: str) -> Roster:
    pools = {"p": Pool.PREFILL, "d": Pool.DECODE}
    return Roster({name: Seat(name, pools[name[0]], WorkerState.LOST, "node-1") for name in worker_ids})


def test_a_worker_is_warming_until_a_pair_of_it_is_proven() -> None:
    fleet = SmallFleet(decode=2, joined=False)
    fleet.joins("p0", "d0")
    snapshot = take_snapshot("tiny", True, fleet.scheduler, roster("p0", "d0", "d1"))
    states = {view.id: view.state for view in snapshot.workers}
    assert states == {"p0": "ready", "d0": "ready", "d1": "warming"}
    assert snapshot.pairs == (PairView("p0", "d0", "shm", ready=True), PairView("p0", "d1", "", ready=False))


def test_a_seat_without_a_worker_keeps_its_place_and_state() -> None:
    fleet = SmallFleet()
    fleet.goes_down("d0")
    snapshot = take_snapshot("tiny", False, fleet.scheduler, roster("p0", "d0"))
    lost = snapshot.workers[1]
    assert (lost.id, lost.pool, lost.state, lost.node) == ("d0", Pool.DECODE, WorkerState.LOST, "node-1")
    assert (lost.incarnation, lost.blocks_total, lost.load) == ("", 0, m.LoadReport())
    assert snapshot.target_workers == {Pool.PREFILL: 1, Pool.DECODE: 1}


def test_a_worker_shows_its_newest_counts() -> None:
    fleet = SmallFleet()
    load = m.LoadReport(running=2, waiting=1, blocks_free=5, blocks_quarantined=1, handoffs=3)
    fleet.says("d0", load)
    snapshot = take_snapshot("tiny", True, fleet.scheduler, roster("p0", "d0"))
    view = snapshot.workers[1]
    assert (view.load, view.blocks_total, view.incarnation) == (load, 16, "d0-1")
    assert snapshot.handoffs_in_flight == 3


def test_the_queue_is_counted_in_requests_and_tokens() -> None:
    fleet = SmallFleet(joined=False)
    fleet.arrives(request("a"), request("b", prompt_ids=(1, 2)))
    snapshot = take_snapshot("tiny", False, fleet.scheduler, roster("p0", "d0"))
    assert (snapshot.model, snapshot.serving) == ("tiny", False)
    assert (snapshot.num_requests, snapshot.queue_requests, snapshot.queue_tokens) == (2, 2, 7)


@pytest.mark.parametrize("joined", [False, True])
def test_a_canary_is_no_users_request(joined: bool) -> None:
    fleet = SmallFleet(joined=joined)
    fleet.arrives(request("a"), request("canary", pair=("p0", "d0")))
    snapshot = take_snapshot("tiny", True, fleet.scheduler, roster("p0", "d0"))
    assert snapshot.num_requests == 1
    queue = (snapshot.queue_requests, snapshot.queue_tokens)
    assert queue == ((0, 0) if joined else (1, len(PROMPT)))
