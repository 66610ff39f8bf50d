"""A request that outlives its deadline fails naming its phase, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.scheduling.phases import Phase
from tests.support.router.small_fleet import (
    LIMITS,
    SmallFleet,
    attempt,
    emitted,
    failures,
    handoff,
    request,
    sent,
)
from twinpool.errors import DeadlineExceeded
from twinpool.session import messages as m
from twinpool.session.messages import ReleaseReason
from twinpool.types import FinishReason, Token

TOLD: dict[Phase, list[m.Command]] = {
    Phase.QUEUED: [],
    Phase.RESERVING: [m.Drop(handoff(1))],
    Phase.PREFILLING: [m.CancelPrefill(handoff(1)), m.Drop(handoff(1))],
    Phase.HANDING_OFF: [m.CancelPrefill(handoff(1)), m.Drop(attempt(1))],
    Phase.DECODING: [m.Drop(attempt(1))],
}
LONGEST_3_S = replace(LIMITS, longest_request_s=3.0)


@pytest.mark.parametrize("phase", TOLD)
def test_a_deadline_is_kept_in_every_phase_and_names_it(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase, timeout_s=2.0)
    assert failures(fleet.passes(1.75)) == {}
    commands = fleet.passes(0.25)
    error = failures(commands)["r"]
    assert isinstance(error, DeadlineExceeded)
    assert str(error) == f"the deadline passed while {phase.value.replace('_', ' ')}"
    assert sent(commands) == TOLD[phase]
    assert emitted(commands) == []
    assert fleet.forgot_everything()


def test_what_an_expired_request_left_is_no_news() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING, timeout_s=2.0)
    fleet.passes(2.0)
    assert fleet.steps(m.RowToken(attempt(1), 2, Token(23), FinishReason.LENGTH)) == []
    assert fleet.releases(ReleaseReason.EVICTED) == []
    assert fleet.passes(2.0) == []


@pytest.mark.parametrize(("asked", "seconds"), [(None, 3.0), (5.0, 3.0), (1.0, 1.0)])
def test_a_client_may_wait_less_long_than_the_server_and_no_longer(
    asked: float | None, seconds: float
) -> None:
    fleet = SmallFleet(limits=LONGEST_3_S)
    fleet.brings(Phase.DECODING, timeout_s=asked)
    assert failures(fleet.passes(seconds - 0.25)) == {}
    assert list(failures(fleet.passes(0.25))) == ["r"]


def test_a_deadline_counts_from_arrival_through_all_attempts() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING, timeout_s=2.0)
    fleet.passes(1.5)
    fleet.releases(ReleaseReason.EXPIRED)
    assert list(failures(fleet.passes(0.5))) == ["r"]


def test_what_a_request_waited_before_it_was_queued_counts() -> None:
    fleet = SmallFleet(limits=LONGEST_3_S)
    fleet.arrives(request("client's", timeout_s=1.0, waited_s=0.75), request("server's", waited_s=2.5))
    assert list(failures(fleet.passes(0.25))) == ["client's"]
    assert list(failures(fleet.passes(0.25))) == ["server's"]


def test_others_keep_their_own_deadlines() -> None:
    fleet = SmallFleet()
    fleet.arrives(request("short", timeout_s=1.0), request("long", timeout_s=2.0), request("endless"))
    assert list(failures(fleet.passes(1.0))) == ["short"]
    assert list(failures(fleet.passes(1.0))) == ["long"]
    assert fleet.phase("endless") is Phase.RESERVING


def test_a_request_whose_deadline_has_passed_is_not_placed() -> None:
    fleet = SmallFleet(joined=False)
    fleet.arrives(request(timeout_s=1.0))
    fleet.says("p0", m.PairJoined("d0-1", "shm"))
    (pair,) = fleet.scheduler.fleet.pairs()
    pair.proven = True
    assert sent(fleet.passes(1.0)) == []
