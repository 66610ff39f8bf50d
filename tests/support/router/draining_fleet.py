"""A small fleet in which a decode worker drains, brought to each point of its row's way."""

from __future__ import annotations

from collections.abc import Sequence

from router.scheduling.commands import Drained, SchedulerSaid
from router.scheduling.events import Drain
from router.scheduling.happenings import MoveEnded
from router.scheduling.phases import Phase
from tests.support.router.small_fleet import SmallFleet, attempt, handoff, reserved, sent
from twinpool.session import messages as m

GRACE_S = 10.0
MAX_TOKENS = 9


def drains(fleet: SmallFleet, worker_id: str = "d0", grace_s: float = GRACE_S) -> list[SchedulerSaid]:
    return fleet.feed(Drain(worker_id, grace_s))


def ticks(fleet: SmallFleet) -> list[SchedulerSaid]:
    return fleet.passes(0.1)


def drained(commands: Sequence[SchedulerSaid]) -> list[str]:
    return [each.incarnation for each in commands if isinstance(each, Drained)]


def moves_ended(commands: Sequence[SchedulerSaid]) -> list[str]:
    return [each.outcome.value for each in commands if isinstance(each, MoveEnded)]


def joins(fleet: SmallFleet, source: str = "d0", target: str = "d1") -> None:
    fleet.says(source, m.PairJoined(fleet.incarnation(target), "shm"))


def draining(*, decode: int = 2) -> SmallFleet:
    """Request r decodes on d0 as try-1, which drains and is joined with d1, if any; its log is 21, 22."""
    fleet = SmallFleet(decode=decode, blocks=64)
    fleet.brings(Phase.DECODING, max_tokens=MAX_TOKENS)
    fleet.prefill_ends(m.PrefillOutcome.DONE)
    drains(fleet)
    ticks(fleet)
    if decode > 1:
        joins(fleet)
    return fleet


def reserving() -> SmallFleet:
    """And room is asked for at d1, as try-2."""
    fleet = draining()
    assert reserved(ticks(fleet)) == [("d1", handoff(2))]
    return fleet


def starts_to_move(fleet: SmallFleet) -> None:
    """The same for a fleet in which try-1 decodes on d0 already."""
    drains(fleet)
    ticks(fleet)
    joins(fleet)
    assert reserved(ticks(fleet)) == [("d1", handoff(2))]


def copying() -> SmallFleet:
    """And d0 copies the row."""
    fleet = reserving()
    assert sent(fleet.grants(2, "d1")) == [m.MoveRow(attempt(1), handoff(2), "d1-1")]
    return fleet


def moves(fleet: SmallFleet, position: int = 2) -> list[SchedulerSaid]:
    return fleet.says("d0", m.RowMoved(attempt(1), handoff(2), position))
