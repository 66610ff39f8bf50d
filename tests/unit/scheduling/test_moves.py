"""Rows move off a decode worker that is to leave while they go on; a move that fails leaves them there."""

from __future__ import annotations

from router.scheduling.draining import MOST_MOVES, MOVE_AGAIN_S
from router.scheduling.events import Cancelled
from router.scheduling.phases import Phase, Setback
from tests.support.router.draining_fleet import (
    MAX_TOKENS,
    copying,
    drained,
    draining,
    drains,
    joins,
    moves,
    moves_ended,
    reserving,
    ticks,
)
from tests.support.router.small_fleet import (
    PROMPT,
    SmallFleet,
    attempt,
    emitted,
    handoff,
    reserved,
    sent,
    setbacks,
)
from twinpool.session import messages as m
from twinpool.types import FinishReason, ServedBy, Token

# A row's way.


def test_a_draining_worker_is_joined_with_every_one_that_stays() -> None:
    fleet = SmallFleet(decode=4)
    drains(fleet, "d3")
    drains(fleet, "d0")
    commands = sent(ticks(fleet), "d0")
    assert commands == [m.JoinPair(f"d{n}-1", fleet.hello(f"d{n}").endpoint) for n in (1, 2)]
    assert not sent(ticks(fleet), "d0")


def test_room_is_asked_for_once_the_pair_is_joined_with_some_to_grow() -> None:
    fleet = draining()
    longest = len(PROMPT) + MAX_TOKENS
    assert sent(ticks(fleet)) == [m.Reserve(handoff(2), (attempt(2),), longest, "d0-1", 30.0)]
    assert not sent(ticks(fleet))


def test_rows_move_to_the_worker_with_the_fewest_rows_those_not_yet_let_in_included() -> None:
    fleet = draining(decode=3)
    joins(fleet, target="d2")
    fleet.says("d1", m.LoadReport(waiting=2, blocks_free=64))
    fleet.says("d2", m.LoadReport(running=1, blocks_free=60))
    assert reserved(ticks(fleet)) == [("d2", handoff(2))]


def test_a_row_is_stepped_while_it_is_copied() -> None:
    fleet = copying()
    (output,) = emitted(fleet.steps(m.RowToken(attempt(1), 2, Token(23), None)))
    assert output.tokens == (Token(23),)


def test_a_row_goes_on_at_its_new_place_where_its_copy_is_whole() -> None:
    fleet = copying()
    fleet.steps(m.RowToken(attempt(1), 2, Token(23), None))
    commands = moves(fleet, 3)
    (admit,) = sent(commands, "d1")
    assert isinstance(admit, m.Admit)
    assert (admit.attempt, admit.prompt_ids, admit.output_ids) == (attempt(2), PROMPT, (21, 22, 23))
    assert sent(commands, "d0") == [m.Drop(attempt(1))]
    assert moves_ended(commands) == ["moved"]
    last = m.RowToken(attempt(2), 3, Token(24), FinishReason.STOP)
    (output,) = emitted(fleet.steps(last, worker_id="d1"))
    assert output.tokens == (Token(24),)
    assert output.ending is not None
    assert (output.ending.workers, output.ending.num_resumes) == (ServedBy("p0", "d1"), 0)


def test_a_worker_is_empty_once_its_row_is_gone_and_stepped_elsewhere() -> None:
    fleet = copying()
    moves(fleet)
    assert not drained(ticks(fleet))
    fleet.releases(m.ReleaseReason.EVICTED)
    assert not drained(ticks(fleet))  # the last of its cache may still be on its way
    fleet.steps(m.RowToken(attempt(2), 2, Token(23), None), worker_id="d1")
    assert drained(ticks(fleet)) == ["d0-1"]


def test_a_grant_said_twice_has_the_row_copied_once() -> None:
    fleet = copying()
    assert not sent(fleet.grants(2, "d1"))


def test_the_oldest_rows_move_first_and_only_so_many_at_a_time() -> None:
    fleet = SmallFleet(blocks=128)
    for number in range(1, MOST_MOVES + 2):
        fleet.decodes(f"r{number}", number)
    fleet.comes_up("d1")
    fleet.joins("p0", "d1")
    drains(fleet)
    ticks(fleet)
    joins(fleet)
    commands = ticks(fleet)
    assert len(reserved(commands)) == MOST_MOVES
    assert not reserved(ticks(fleet))
    assert [choice.request_id for choice in fleet.scheduler.choices if choice.move is None] == [
        f"r{MOST_MOVES + 1}"
    ]


# What can become of it instead.


def test_a_refused_row_is_offered_again_after_a_while() -> None:
    fleet = reserving()
    commands = fleet.refuses(2, "d1", free=64)
    assert moves_ended(commands) == ["failed"]
    assert not sent(commands)
    assert not reserved(ticks(fleet))
    assert reserved(fleet.passes(MOVE_AGAIN_S)) == [("d1", handoff(3))]


def test_a_row_whose_copy_failed_stays_and_is_tried_again() -> None:
    fleet = copying()
    commands = fleet.says("d0", m.MoveFailed(attempt(1), handoff(2), "stopped"))
    assert sent(commands) == [m.Drop(handoff(2))]
    assert moves_ended(commands) == ["failed"]
    assert fleet.phase() is Phase.DECODING
    assert not reserved(ticks(fleet))
    assert reserved(fleet.passes(MOVE_AGAIN_S)) == [("d1", handoff(3))]


def test_a_row_whose_reservation_expired_stays() -> None:
    fleet = copying()
    commands = fleet.releases(m.ReleaseReason.EXPIRED, 2, "d1")
    assert not sent(commands)
    assert moves_ended(commands) == ["failed"]
    assert fleet.phase() is Phase.DECODING


def test_a_row_that_moved_into_an_expired_reservation_is_resumed() -> None:
    fleet = copying()
    fleet.releases(m.ReleaseReason.EXPIRED, 2, "d1")
    commands = moves(fleet)
    assert setbacks(commands) == [("r", Setback.DRAINED, True)]
    assert m.Drop(attempt(1)) in sent(commands, "d0")


def test_a_row_whose_admit_comes_too_late_is_resumed_and_no_attempt_is_lost() -> None:
    fleet = copying()
    moves(fleet)
    commands = fleet.releases(m.ReleaseReason.GONE, 2, "d1")
    assert setbacks(commands) == [("r", Setback.EXPIRED, True)]


def test_a_row_whose_target_is_lost_stays() -> None:
    fleet = copying()
    commands = fleet.goes_down("d1")
    assert moves_ended(commands) == ["failed"]
    assert sent(fleet.has_ended("d1"), "d0")[0] == m.LeavePair("d1-1")
    assert fleet.phase() is Phase.DECODING
    assert not setbacks(commands)


def test_a_row_whose_worker_is_lost_is_resumed_and_its_reservation_revoked() -> None:
    fleet = copying()
    commands = fleet.goes_down("d0")
    assert setbacks(commands) == [("r", Setback.WORKER_LOST, True)]
    assert sent(commands, "d1")[:1] == [m.Drop(handoff(2))]


def test_a_row_that_ends_meanwhile_leaves_nothing_at_either_side() -> None:
    fleet = copying()
    commands = fleet.steps(m.RowToken(attempt(1), 2, Token(23), FinishReason.STOP))
    assert sent(commands, "d1") == [m.Drop(handoff(2))]
    assert sent(commands, "d0") == [m.Drop(attempt(1))]
    assert fleet.forgot_everything()


def test_a_row_whose_client_leaves_meanwhile_leaves_nothing_at_either_side() -> None:
    fleet = copying()
    commands = fleet.feed(Cancelled("r"))
    assert sent(commands, "d1") == [m.Drop(handoff(2))]
    assert sent(commands, "d0") == [m.Drop(attempt(1))]
    assert fleet.forgot_everything()


def test_a_row_that_must_make_room_meanwhile_is_resumed() -> None:
    fleet = SmallFleet(blocks=64)
    fleet.decodes("old", 1)
    fleet.decodes("young", 2)
    fleet.comes_up("d1")
    fleet.joins("p0", "d1")
    drains(fleet)
    ticks(fleet)
    joins(fleet)
    assert reserved(ticks(fleet)) == [("d1", handoff(3)), ("d1", handoff(4))]
    commands = fleet.pauses(attempt(1))
    assert setbacks(commands) == [("young", Setback.PREEMPTED, True)]
    assert sent(commands, "d1") == [m.Drop(handoff(4))]


def test_a_row_that_moves_in_stays_where_it_is_if_its_target_must_make_room() -> None:
    fleet = copying()
    fleet.decodes("there", 3, worker_id="d1")
    commands = fleet.pauses(attempt(3), worker_id="d1")
    assert sent(commands) == [m.Drop(handoff(2))]
    assert moves_ended(commands) == ["failed"]
    assert not setbacks(commands)
    assert fleet.phase() is Phase.DECODING
    assert not sent(fleet.pauses(attempt(3), worker_id="d1"))  # it is on its way out
    fleet.releases(m.ReleaseReason.REVOKED, 2, "d1")
    fleet.says("d0", m.MoveFailed(attempt(1), handoff(2), "stopped"))
    assert reserved(fleet.passes(MOVE_AGAIN_S)) == [("d1", handoff(4))]


def test_a_broken_pair_is_joined_again_after_a_while() -> None:
    fleet = draining()
    fleet.says("d0", m.PairBroken("d1-1", "reset"))
    assert not sent(ticks(fleet))
    assert sent(fleet.passes(0.5)) == [m.JoinPair("d1-1", fleet.hello("d1").endpoint)]
    joins(fleet)
    assert reserved(ticks(fleet)) == [("d1", handoff(2))]


# Whither it may go.


def test_nothing_moves_to_a_worker_that_is_to_leave_too() -> None:
    fleet = copying()
    commands = drains(fleet, "d1")
    assert sent(commands, "d1") == [m.Drop(handoff(2))]
    assert moves_ended(commands) == ["failed"]
    fleet.says("d0", m.MoveFailed(attempt(1), handoff(2), "stopped"))
    assert not reserved(ticks(fleet))


def test_a_worker_that_comes_up_meanwhile_is_a_target_once_a_canary_has_passed() -> None:
    fleet = draining(decode=1)
    assert not reserved(ticks(fleet))
    fleet.comes_up("d1")
    assert m.JoinPair("d1-1", fleet.hello("d1").endpoint) in sent(ticks(fleet), "d0")
    joins(fleet)
    assert not reserved(ticks(fleet))
    fleet.joins("p0", "d1")
    assert reserved(ticks(fleet)) == [("d1", handoff(2))]


def test_a_full_worker_is_no_target() -> None:
    fleet = draining()
    fleet.loads["d1"] = m.LoadReport(running=2, blocks_free=5)
    fleet.says("d1", fleet.loads["d1"])
    assert not reserved(ticks(fleet))
