"""Who is placed next, and where: the lower place first, least busy pair, and no overtaking without end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.scheduling.events import PairProven
from router.scheduling.happenings import SetBack
from router.scheduling.phases import Setback
from router.scheduling.scheduler import SchedulerLimits
from tests.support.router.small_fleet import (
    LIMITS,
    SmallFleet,
    attempt,
    failures,
    handoff,
    number_of,
    request,
    reserved,
    sent,
)
from twinpool.session import messages as m
from twinpool.session.messages import PrefillOutcome, ReleaseReason
from twinpool.types import FinishReason

CANARY = request("canary", pair=("p0", "d0"))
LARGE = (1,) * 45


def limits(*, most_prompts: int = 8, most_rows: int = 8) -> SchedulerLimits:
    return replace(LIMITS, most_prompts=most_prompts, most_rows=most_rows)


# Order.


def test_requests_wait_until_a_pair_is_proven_and_then_go_by_arrival() -> None:
    fleet = SmallFleet(joined=False)
    assert fleet.arrives(request("a"), request("b")) == []
    fleet.says("p0", m.PairJoined("d0-1", "shm"))
    commands = fleet.feed(PairProven("p0-1", "d0-1"))
    assert reserved(commands) == [("d0", handoff(1)), ("d0", handoff(2))]
    assert [state.request_id for state in fleet.scheduler.requests.values()] == ["a", "b"]
    assert fleet.choice("a").attempt == attempt(1)


def test_a_refused_request_keeps_its_place() -> None:
    fleet = SmallFleet(limits=limits(most_rows=1))
    fleet.arrives(request("old"), request("young"))
    assert fleet.refuses(free=0) == [SetBack("old", Setback.REFUSED, resumed=False)]
    assert [state.request_id for state in fleet.scheduler.queue] == ["old", "young"]
    assert fleet.says("d0", m.LoadReport(blocks_free=1)) == []
    commands = fleet.says("d0", m.LoadReport(blocks_free=16))
    assert reserved(commands) == [("d0", handoff(2))]
    assert fleet.choice("old").attempt == attempt(2)


def test_a_request_without_room_is_overtaken_for_a_second_and_then_no_more() -> None:
    fleet = SmallFleet()
    fleet.loads["d0"] = m.LoadReport(blocks_free=6)
    fleet.says("d0", fleet.loads["d0"])
    assert fleet.arrives(request("large", prompt_ids=LARGE)) == []  # 12 blocks
    assert reserved(fleet.arrives(request("small 1"))) == [("d0", handoff(1))]
    fleet.passes(0.75)
    assert reserved(fleet.arrives(request("small 2"))) == [("d0", handoff(2))]
    fleet.passes(0.25)
    for number in (1, 2):
        fleet.grants(number)
        fleet.prefill_ends(PrefillOutcome.DONE, number)
    assert fleet.arrives(request("small 3")) == []
    assert fleet.says("d0", m.LoadReport(blocks_free=11)) == []
    assert reserved(fleet.says("d0", m.LoadReport(blocks_free=16))) == [
        ("d0", handoff(3)),
        ("d0", handoff(4)),
    ]
    assert fleet.choice("large").attempt == attempt(3)


def test_a_request_that_needs_no_decode_worker_passes_one_that_waits_for_a_decode_worker() -> None:
    fleet = SmallFleet()
    fleet.says("d0", m.LoadReport(blocks_free=0))
    fleet.arrives(request("old"))
    fleet.passes(1)
    assert len(sent(fleet.arrives(request("single", max_tokens=1)), "p0")) == 1


def test_the_second_of_overtaking_counts_from_the_first_refusal_by_whichever_worker() -> None:
    fleet = SmallFleet(decode=2)
    fleet.arrives(request("large", prompt_ids=LARGE))
    fleet.passes(5)
    assert reserved(fleet.refuses(1, "d0", free=8)) == [("d1", handoff(2))]
    fleet.passes(1)
    fleet.refuses(2, "d1", free=7)
    assert reserved(fleet.arrives(request("small"))) == [
        ("d1", handoff(3))
    ]  # and not where there is more room


def large_waits(*, prefill: int = 1, decode: int) -> SmallFleet:
    """Workers have room for small requests; a large one has waited for as long as it may be overtaken."""
    fleet = SmallFleet(prefill=prefill, decode=decode, limits=limits(most_prompts=99, most_rows=99))
    for worker_id in (f"d{number}" for number in range(decode)):
        fleet.loads[worker_id] = m.LoadReport(running=1, blocks_free=8)
        fleet.says(worker_id, fleet.loads[worker_id])
    assert fleet.arrives(request("large", prompt_ids=LARGE)) == []
    fleet.passes(1)
    return fleet


def test_room_is_held_for_it_on_one_worker_and_others_pass_on_the_rest() -> None:
    fleet = large_waits(decode=2)
    for number in range(1, 9):
        commands = fleet.arrives(request(f"small {number}", max_tokens=9))
        assert reserved(commands) == [("d1", handoff(number))]
        fleet.grants(number, "d1")
        fleet.reads(reason=FinishReason.STOP, number=number)
        fleet.prefill_ends(PrefillOutcome.DONE, number)
        fleet.releases(ReleaseReason.REVOKED, number, "d1")
    assert fleet.says("d0", m.LoadReport(running=1, blocks_free=12)) == []
    assert reserved(fleet.says("d0", m.LoadReport(running=1, blocks_free=13))) == [("d0", handoff(9))]
    assert fleet.choice("large").attempt == attempt(9)


def test_others_pass_on_its_worker_too_if_it_fits_beside_them() -> None:
    fleet = large_waits(decode=1)
    fleet.arrives(request("busy", prompt_ids=(1,) * 40, max_tokens=1))  # 10 of the prefill worker's 16 blocks
    assert fleet.says("d0", m.LoadReport(blocks_free=16)) == []
    assert reserved(fleet.arrives(request("small", prompt_ids=(1,) * 8))) == []  # 3 blocks beside its 12
    fleet.prefill_ends(PrefillOutcome.DONE, 1)
    assert fleet.phase("large") == "reserving"
    assert fleet.phase("small") == "reserving"


def test_room_is_held_on_another_worker_if_the_first_leaves() -> None:
    fleet = large_waits(prefill=4, decode=3)
    assert reserved(fleet.arrives(request("small 1"))) == [("d1", handoff(1))]
    fleet.goes_down("d0")
    for number in (2, 3):
        assert reserved(fleet.arrives(request(f"small {number}"))) == [("d1", handoff(number))]
    assert reserved(fleet.says("d2", m.LoadReport(blocks_free=16)))[0][0] == "d2"
    assert fleet.phase("large") == "reserving"


def test_a_prompt_too_large_for_what_a_prefill_worker_has_left_is_not_overtaken_there() -> None:
    fleet = SmallFleet(prefill=2, limits=limits(most_prompts=99))
    for name in "ab":
        fleet.arrives(request(name, prompt_ids=(1,) * 20, max_tokens=1))  # 5 of 16 blocks on each
    fleet.arrives(request("large", prompt_ids=(1,) * 48, max_tokens=1))
    fleet.passes(1)
    for number in range(4):
        name = f"small {number}"
        fleet.arrives(request(name, prompt_ids=(1,) * 4, max_tokens=1))
        assert fleet.choice(name).prefill_id == "p1"
    commands = fleet.prefill_ends(PrefillOutcome.DONE, 1, "p0")
    assert [type(each) for each in sent(commands, "p0")] == [m.Prefill]
    assert fleet.choice("large").prefill_id == "p0"


def test_what_waits_next_has_the_next_claim() -> None:
    fleet = large_waits(decode=1)
    fleet.arrives(request("large 2", prompt_ids=LARGE))
    fleet.passes(1)
    assert reserved(fleet.says("d0", m.LoadReport(blocks_free=16))) == [("d0", handoff(1))]
    fleet.loads["d0"] = m.LoadReport(waiting=1, blocks_free=4)
    fleet.grants()
    assert reserved(fleet.arrives(request("small"))) == []
    fleet.loads["d0"] = m.LoadReport(blocks_free=16)
    fleet.reads(reason=FinishReason.STOP)
    assert reserved(fleet.releases(ReleaseReason.REVOKED)) == []  # the prefill worker still has the first
    assert reserved(fleet.prefill_ends(PrefillOutcome.DONE)) == [("d0", handoff(2)), ("d0", handoff(3))]
    assert fleet.choice("large 2").attempt == attempt(2)


def test_a_request_that_got_through_and_is_queued_again_may_be_overtaken_for_another_second() -> None:
    fleet = SmallFleet()
    fleet.says("d0", m.LoadReport(blocks_free=0))
    fleet.arrives(request("old"))
    fleet.passes(1)
    fleet.says("d0", m.LoadReport(blocks_free=16))
    fleet.grants()
    fleet.loads["d0"] = m.LoadReport(blocks_free=1)
    assert reserved(fleet.releases(ReleaseReason.EXPIRED)) == []
    assert reserved(fleet.arrives(request("small", prompt_ids=(1, 2, 3)))) == [("d0", handoff(2))]


def test_waiting_for_a_prefill_slot_is_no_reason_to_hold_others_back() -> None:
    fleet = SmallFleet(limits=limits(most_prompts=1))
    fleet.arrives(request("a"), request("b"), request("c"))
    fleet.passes(9)
    fleet.grants()
    fleet.reads(0, FinishReason.STOP)
    commands = fleet.prefill_ends(PrefillOutcome.DONE)
    assert reserved(commands) == [("d0", handoff(2))]
    assert fleet.choice("b").attempt == attempt(2)


def test_a_request_queued_again_takes_its_old_place() -> None:
    fleet = SmallFleet(limits=limits(most_prompts=1))
    fleet.arrives(request("a"), request("b"))
    fleet.grants()
    fleet.releases(ReleaseReason.EXPIRED)
    assert [state.request_id for state in fleet.scheduler.queue] == ["a", "b"]
    assert reserved(fleet.prefill_ends(PrefillOutcome.STOPPED)) == [("d0", handoff(2))]
    assert fleet.choice("a").attempt == attempt(2)


# Room.


def test_a_reservation_covers_prompt_and_one_token_and_must_fit_what_is_free() -> None:
    fleet = SmallFleet()
    fleet.says("d0", m.LoadReport(blocks_free=3))
    assert fleet.arrives(request("too large", prompt_ids=(1,) * 12)) == []  # 12 + 1 tokens: 4 blocks
    (reserve,) = sent(fleet.arrives(request("fits", prompt_ids=(1,) * 11, max_tokens=40)), "d0")
    assert reserve == m.Reserve(handoff(1), (attempt(1),), 12, "p0-1", 30.0)


@pytest.mark.parametrize(("free", "fits"), [(3, False), (4, True)])
def test_one_free_block_must_remain_for_each_running_row(free: int, fits: bool) -> None:
    fleet = SmallFleet()
    fleet.says("d0", m.LoadReport(running=2, blocks_free=free))
    assert bool(fleet.arrives(request("a"))) == fits  # 2 blocks


def test_a_reservation_not_answered_yet_counts_as_taken() -> None:
    fleet = SmallFleet()
    fleet.says("d0", m.LoadReport(blocks_free=3))
    assert reserved(fleet.arrives(request("a"))) == [("d0", handoff(1))]  # 2 blocks
    assert fleet.arrives(request("b")) == []
    fleet.loads["d0"] = m.LoadReport(waiting=1, blocks_free=2)
    assert reserved(fleet.grants(1)) == [("d0", handoff(2))]


@pytest.mark.parametrize(("running", "waiting"), [(2, 0), (0, 2), (1, 1)])
def test_a_full_batch_takes_no_more_reservations(running: int, waiting: int) -> None:
    fleet = SmallFleet(limits=limits(most_rows=3))
    fleet.says("d0", m.LoadReport(running=running, waiting=waiting, blocks_free=16))
    assert reserved(fleet.arrives(request("a"))) == [("d0", handoff(1))]
    assert fleet.arrives(request("b")) == []


def test_a_prefill_worker_takes_so_many_prompts_and_no_more_until_one_ends() -> None:
    fleet = SmallFleet(limits=limits(most_prompts=1))
    fleet.arrives(request("a"), request("b"))
    fleet.grants()
    fleet.reads(21)
    assert fleet.phase("b") == "queued"
    assert reserved(fleet.prefill_ends(PrefillOutcome.DONE)) == [("d0", handoff(2))]


def test_a_prefill_worker_takes_no_more_tokens_than_its_blocks_hold() -> None:
    fleet = SmallFleet(decode=2)
    fleet.arrives(request("a", prompt_ids=(1,) * 50, max_tokens=2))  # 13 of 16 blocks
    assert fleet.arrives(request("b", prompt_ids=(1,) * 13, max_tokens=2)) == []
    assert reserved(fleet.arrives(request("c", prompt_ids=(1,) * 12, max_tokens=2))) == [("d1", handoff(2))]


@pytest.mark.parametrize("event", ["evicted", "tick", "load", "prefill ended"])
def test_a_queued_request_is_tried_again_whenever_room_may_have_come(event: str) -> None:
    fleet = SmallFleet()
    fleet.says("d0", m.LoadReport(blocks_free=0))
    fleet.arrives(request("a"))
    fleet.loads["d0"] = m.LoadReport(blocks_free=16)
    match event:
        case "evicted":
            commands = fleet.releases(ReleaseReason.EVICTED, 99)
        case "load":
            commands = fleet.says("d0", fleet.loads["d0"])
        case "tick":
            fleet.steps()
            commands = fleet.passes(0.1)
        case _:
            fleet.steps()
            commands = fleet.prefill_ends(PrefillOutcome.DONE, 99)
    assert reserved(commands) == [("d0", handoff(1))]


@pytest.mark.parametrize(("max_tokens", "decode_id"), [(11, "d0"), (12, "d1")])
def test_a_request_is_not_placed_where_it_would_outgrow_the_whole_pool(
    max_tokens: int, decode_id: str
) -> None:
    fleet = SmallFleet(decode=2)
    fleet.goes_down("d0")
    fleet.blocks = 4
    fleet.comes_up("d0")
    fleet.joins("p0", "d0")
    fleet.says("d1", m.LoadReport(running=1, blocks_free=16))
    assert reserved(fleet.arrives(request(max_tokens=max_tokens))) == [(decode_id, handoff(1))]


# Which pair.


def test_the_prefill_worker_with_the_least_to_read_is_chosen() -> None:
    fleet = SmallFleet(prefill=2)
    fleet.arrives(request("long", prompt_ids=(1,) * 20))
    fleet.arrives(request("short"))
    fleet.arrives(request("third"))
    writers = {choice.request_id: choice.prefill_id for choice in fleet.scheduler.choices}
    assert writers == {"long": "p0", "short": "p1", "third": "p1"}


def test_then_the_decode_worker_with_the_fewest_rows_and_then_the_most_room() -> None:
    fleet = SmallFleet(decode=3)
    fleet.says("d0", m.LoadReport(running=1, blocks_free=16))
    fleet.says("d1", m.LoadReport(running=0, blocks_free=9))
    fleet.says("d2", m.LoadReport(running=0, blocks_free=12))
    assert reserved(fleet.arrives(request("a"))) == [("d2", handoff(1))]


def test_a_burst_spreads_over_decode_workers_also_while_its_prompts_are_being_read() -> None:
    fleet = SmallFleet(decode=2, limits=limits(most_prompts=12), blocks=64)
    fleet.says("d1", m.LoadReport(running=2, blocks_free=60))
    fleet.loads = {"d0": m.LoadReport(blocks_free=64), "d1": m.LoadReport(running=2, blocks_free=60)}
    for number in range(1, 9):
        ((decode_id, handoff_id),) = reserved(fleet.arrives(request(f"r{number}")))
        load = fleet.loads[decode_id]
        fleet.loads[decode_id] = replace(load, waiting=load.waiting + 1, blocks_free=load.blocks_free - 2)
        fleet.grants(number_of(handoff_id), decode_id)
    assert (fleet.loads["d0"].waiting, fleet.loads["d1"].waiting) == (5, 3)


def test_a_pair_that_is_joined_but_not_proven_takes_no_users_request() -> None:
    fleet = SmallFleet(joined=False)
    fleet.says("p0", m.PairJoined("d0-1", "shm"))
    assert fleet.arrives(request("a"), request("single", max_tokens=1)) == []
    assert not fleet.scheduler.fleet.serves()


# Canaries.


def test_a_canary_goes_through_its_own_pair_before_it_is_proven() -> None:
    fleet = SmallFleet(prefill=2, decode=2, joined=False)
    fleet.says("p1", m.PairJoined("d0-1", "shm"))
    commands = fleet.arrives(request("canary", pair=("p1", "d0")))
    assert reserved(commands) == [("d0", handoff(1))]
    (prefill,) = sent(fleet.grants(), "p1")
    assert isinstance(prefill, m.Prefill)


def test_a_canary_takes_no_other_pair() -> None:
    fleet = SmallFleet(prefill=1, decode=2)
    fleet.says("d0", m.LoadReport(blocks_free=0))
    assert fleet.arrives(CANARY) == []


def test_a_canary_waits_for_its_pair_to_be_joined_and_holds_nobody_back() -> None:
    fleet = SmallFleet(prefill=1, decode=2)
    fleet.says("p0", m.PairBroken("d0-1", "reset"))
    assert fleet.arrives(CANARY) == []
    fleet.passes(60)
    assert reserved(fleet.arrives(request("a"))) == [("d1", handoff(1))]


def test_a_canary_goes_before_users_that_wait() -> None:
    fleet = SmallFleet()
    fleet.says("d0", m.LoadReport(blocks_free=0))
    fleet.arrives(request("a"), CANARY)
    commands = fleet.says("d0", m.LoadReport(blocks_free=3))
    assert reserved(commands) == [("d0", handoff(1))]
    assert fleet.choice("canary").attempt == attempt(1)


def test_a_canary_with_one_token_left_stays_on_its_prefill_worker() -> None:
    fleet = SmallFleet(prefill=2)
    commands = fleet.arrives(request("canary", max_tokens=1, pair=("p1", "d0")))
    assert len(sent(commands, "p1")) == 1
    assert failures(commands) == {}


# What fits at all.


def test_the_largest_request_is_bounded_by_the_smaller_side() -> None:
    fleet = SmallFleet()
    assert fleet.scheduler.fleet.capacity_tokens() == 64
    fleet.blocks = 10
    fleet.goes_down("p0")
    assert fleet.scheduler.fleet.capacity_tokens() == 0
    fleet.comes_up("p0")
    assert fleet.scheduler.fleet.capacity_tokens() == 40
