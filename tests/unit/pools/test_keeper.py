"""A keeper fills its seats again and again, gives up what only fails, and ends nobody whom another has."""

from __future__ import annotations

import asyncio

import pytest

from router.pools.launcher import Leave
from router.scheduling.commands import ReplaceCause, ReplaceWorker
from tests.support.router.keeping import BACKOFF_S, Backoff, FakeSession, Keep, rest, until
from twinpool.errors import NotPlaced, StartFailed, TakenOver
from twinpool.types import Pool, WorkerState

# A seat's life.


async def test_all_seats_are_offered_to_be_taken_over_and_filled(keep: Keep) -> None:
    kept = await keep(1, 2)
    assert kept.launcher.seats == {
        "prefill-0": Pool.PREFILL,
        "decode-0": Pool.DECODE,
        "decode-1": Pool.DECODE,
    }
    assert kept.is_up("prefill-0", "decode-0", "decode-1")
    seat = kept.roster.seats["decode-1"]
    assert (seat.node, seat.in_session) == ("node-1", True)


@pytest.mark.parametrize("what", ["ended", "session_over"])
async def test_a_worker_whose_process_or_session_ends_is_ended_and_replaced(keep: Keep, what: str) -> None:
    kept = await keep()
    life = kept.launcher.life("decode-0")
    getattr(life, what).set_result("out of memory")
    await kept.is_another_life("decode-0", life)
    assert kept.dispatcher.down == [life.worker.incarnation]
    assert life.killed
    assert kept.dispatcher.gone == [(Pool.DECODE, life.worker.incarnation)]
    assert kept.roster.seats["decode-0"].reason == "out of memory"
    assert kept.restarts(Pool.DECODE, "exited") == 1


async def test_a_worker_that_is_to_be_replaced_is_killed(keep: Keep) -> None:
    kept = await keep()
    life = kept.launcher.life("decode-0")
    stuck = ReplaceWorker("decode-0", life.worker.incarnation, "stands still", ReplaceCause.STUCK)
    kept.keeper.replace(stuck)
    other = await kept.is_another_life("decode-0", life)
    assert kept.restarts(Pool.DECODE, "stuck") == 1
    assert set(kept.dispatcher.gone) == {(Pool.DECODE, life.worker.incarnation)}
    kept.keeper.replace(stuck)  # an older life's
    await rest()
    assert not other.killed


async def test_stopping_ends_all_workers_gently(keep: Keep) -> None:
    kept = await keep(2, 2)
    await kept.keeper.stop()
    assert [life.stopped for life in kept.launcher.lives] == [True] * 4


async def test_workers_are_left_alive_for_the_next_router(keep: Keep) -> None:
    kept = await keep(1, 2)
    await kept.keeper.stop(Leave.ALL)
    assert [(life.released, life.is_over) for life in kept.launcher.lives] == [(True, False)] * 3
    assert len(kept.dispatcher.down) == 3
    assert kept.dispatcher.gone == []


async def test_a_worker_that_may_live_on_is_not_said_to_be_gone(keep: Keep) -> None:
    """It is another router's: what it was about to write still comes."""
    kept = await keep()
    life = kept.launcher.life("prefill-0")
    life.released = True
    life.session_over.set_result("lost")
    await kept.is_another_life("prefill-0", life)
    assert kept.dispatcher.down == [life.worker.incarnation]
    assert kept.dispatcher.gone == []


async def test_of_workers_that_were_up_before_and_others_only_those_are_left_alive(keep: Keep) -> None:
    kept = await keep(1, 2, starts=False)
    kept.launcher.attached = True
    await kept.start()
    kept.launcher.attached = False
    before = kept.launcher.life("decode-1")
    before.ended.set_result("gone")
    new = await kept.is_another_life("decode-1", before)
    await kept.keeper.stop(Leave.ATTACHED)
    left = {life.worker.worker_id for life in kept.launcher.lives if life.released and not life.is_over}
    assert left == {"prefill-0", "decode-0"}
    assert new.stopped


@pytest.mark.parametrize("replaces", [True, False])
async def test_stopping_waits_for_workers_that_are_being_ended(keep: Keep, replaces: bool) -> None:
    kept = await keep()
    life = kept.launcher.life("decode-0")
    may_end = kept.launcher.may_end["decode-0"] = asyncio.Event()
    if replaces:
        stuck = ReplaceWorker("decode-0", life.worker.incarnation, "stands still", ReplaceCause.STUCK)
        kept.keeper.replace(stuck)
    else:
        life.session_over.set_result("session lost")
    await rest()
    stopping = asyncio.create_task(kept.keeper.stop())
    await rest()
    assert not stopping.done()
    may_end.set()
    await stopping
    assert life.is_over


# What does not come up.


async def test_failed_starts_wait_longer_and_longer_until_one_serves(keep: Keep, backoff: Backoff) -> None:
    kept = await keep()
    life = kept.launcher.life("decode-0")
    backoff.asked.clear()
    kept.launcher.trouble += [StartFailed("no memory"), StartFailed("no memory")]
    life.ended.set_result("gone")
    other = await kept.is_another_life("decode-0", life)
    assert backoff.asked == [0, 1, 2]
    kept.roster.seats["decode-0"].was_ready = True
    other.ended.set_result("gone")
    await kept.is_another_life("decode-0", other)
    assert backoff.asked == [0, 1, 2, 0]
    assert list(BACKOFF_S) == sorted(BACKOFF_S)


@pytest.mark.parametrize("fault", ["start", "session", "before a canary"])
async def test_a_worker_that_fails_too_often_in_a_row_is_given_up(
    keep: Keep, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    kept = await keep()
    life = kept.launcher.life("decode-0")
    if fault == "start":
        kept.launcher.trouble += [StartFailed("no memory")] * 3
    if fault == "session":
        monkeypatch.setattr(FakeSession, "refuses", True)
    life.ended.set_result("gone")
    for _ in range(3 if fault == "before a canary" else 0):
        life = await kept.is_another_life("decode-0", life)
        life.ended.set_result("gone")
    await until(kept.keeper.failed.done)
    assert "decode worker decode-0 is given up: it failed too often" in kept.keeper.failed.result()
    seat = kept.roster.seats["decode-0"]
    assert (seat.given_up, seat.reason[:10]) == (True, "given up: ")
    assert "the decode pool has no worker" in kept.dispatcher.given_up[Pool.DECODE]


async def test_a_worker_at_whose_port_another_answers_is_ended_and_its_seat_filled_again(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await keep(starts=False)
    monkeypatch.setattr(FakeSession, "answers", "decode-0-another")
    kept.keeper.start()
    await until(lambda: kept.roster.seats["prefill-0"].state is WorkerState.LOST)
    seat = kept.roster.seats["prefill-0"]
    assert seat.reason == "decode-0-another answers at prefill-0-0, not prefill-0-0"
    assert kept.launcher.lives[0].killed
    monkeypatch.setattr(FakeSession, "answers", "")
    await until(lambda: kept.is_up("prefill-0"))


async def test_a_worker_that_was_given_up_is_tried_again_when_it_is_renewed(keep: Keep) -> None:
    kept = await keep()
    life = kept.launcher.life("decode-0")
    kept.launcher.trouble += [StartFailed("no memory")] * 3
    life.ended.set_result("gone")
    await until(kept.keeper.failed.done)
    kept.keeper.renew(kept.roster.seats["decode-0"])
    assert kept.dispatcher.given_up == {}
    await kept.is_another_life("decode-0", life)


async def test_a_pool_that_was_given_up_may_grow_and_a_given_up_seat_may_go(keep: Keep) -> None:
    kept = await keep()
    kept.launcher.trouble += [StartFailed("no memory")] * 3
    kept.launcher.life("decode-0").ended.set_result("gone")
    await until(kept.keeper.failed.done)
    kept.keeper.add(Pool.DECODE, 1)
    assert kept.dispatcher.given_up == {}
    await until(lambda: kept.is_up("decode-1"))
    kept.keeper.remove(kept.roster.seats["decode-0"])
    assert list(kept.roster.seats) == ["prefill-0", "decode-1"]


async def test_a_pool_that_has_another_worker_is_not_given_up(keep: Keep) -> None:
    kept = await keep(1, 2)
    kept.launcher.trouble += [StartFailed("no memory")] * 3
    kept.launcher.life("decode-0").ended.set_result("gone")
    await until(kept.keeper.failed.done)
    assert not kept.dispatcher.given_up
    assert kept.dispatcher.closed == ["decode-0"]


async def test_a_worker_without_a_place_is_asked_for_again_and_again(keep: Keep) -> None:
    kept = await keep()
    life = kept.launcher.life("decode-0")
    kept.launcher.trouble += [NotPlaced("no node has a GPU")] * 20
    kept.launcher.says_waiting = "no node has a GPU"
    life.ended.set_result("gone")
    await kept.is_another_life("decode-0", life)
    assert kept.launcher.num_starts == 23
    assert not kept.keeper.failed.done()


async def test_a_worker_that_waits_for_a_node_says_so(keep: Keep) -> None:
    kept = await keep(starts=False)
    kept.launcher.may_start.clear()
    kept.launcher.says_waiting = "no node has a GPU"
    kept.keeper.start()
    await until(lambda: kept.launcher.num_starts == 2)
    seat = kept.roster.seats["decode-0"]
    assert (seat.state, seat.reason) == (WorkerState.WAITING_FOR_NODE, "no node has a GPU")


# Another router.


@pytest.mark.parametrize("what", ["ended", "session_over"])
async def test_nobody_is_ended_once_another_router_has_one(keep: Keep, what: str) -> None:
    kept = await keep(2, 2)
    getattr(kept.launcher.life("decode-1"), what).set_exception(TakenOver("by another router"))
    assert await kept.keeper.taken_over == "by another router"
    await until(lambda: all(life.released for life in kept.launcher.lives))
    await kept.keeper.stop()
    assert not any(life.is_over for life in kept.launcher.lives)
    assert kept.dispatcher.given_up == {None: "by another router"}
    assert not kept.keeper.failed.done()


async def test_a_router_that_finds_at_a_start_that_it_is_the_older_ends_nobody(keep: Keep) -> None:
    kept = await keep(1, 2)
    kept.launcher.trouble.append(TakenOver("by another router"))
    kept.launcher.life("decode-1").ended.set_result("gone")
    assert await kept.keeper.taken_over == "by another router"
    await until(lambda: sum(life.released for life in kept.launcher.lives) == 2)
    assert len(kept.launcher.lives) == 3


async def test_an_older_router_that_disturbs_a_session_takes_nothing_over(keep: Keep) -> None:
    kept = await keep()
    kept.launcher.taken_over = False
    life = kept.launcher.life("decode-0")
    life.session_over.set_exception(TakenOver("by another router"))
    await kept.is_another_life("decode-0", life)
    assert not kept.keeper.taken_over.done()


async def test_a_router_that_slept_through_its_sessions_end_ends_nobody_either(keep: Keep) -> None:
    kept = await keep(1, 1)
    for life in kept.launcher.lives:
        life.session_over.set_result("session lost: keepalive")
        life.ended.set_exception(TakenOver("by another router"))
    await until(lambda: all(life.released for life in kept.launcher.lives))
    assert not any(life.is_over for life in kept.launcher.lives)


async def test_seats_that_change_while_workers_are_taken_over_are_filled_as_they_are_then(keep: Keep) -> None:
    kept = await keep(1, 2, starts=False)
    kept.launcher.may_take_over.clear()
    kept.keeper.start()
    await rest()
    kept.keeper.add(Pool.PREFILL, 1)
    kept.keeper.remove(kept.roster.seats["decode-1"])
    assert kept.launcher.num_starts == 0
    kept.launcher.may_take_over.set()
    await until(lambda: kept.is_up("prefill-0", "prefill-1", "decode-0"))
    assert list(kept.roster.seats) == ["prefill-0", "decode-0", "prefill-1"]
    assert kept.launcher.spared == ["prefill-0", "decode-0", "prefill-1"]


async def test_a_seat_that_cannot_be_kept_is_no_secret(keep: Keep) -> None:
    kept = await keep(starts=False)
    kept.launcher.trouble.append(ZeroDivisionError("a bug"))
    kept.keeper.start()
    await until(lambda: kept.broken)
    (error,) = kept.broken
    assert isinstance(error, ZeroDivisionError)
    kept.broken.clear()
