"""Several choices of a request: each goes its own way under its own index; the last one ends the request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.scheduling import attempts
from router.scheduling.commands import Emit
from router.scheduling.events import Aborted, Cancelled, Cut
from router.scheduling.phases import Phase, Setback
from router.scheduling.values import Output
from tests.support.router.small_fleet import (
    LIMITS,
    SmallFleet,
    attempt,
    emitted,
    failures,
    handoff,
    request,
    reserved,
    sent,
    setbacks,
)
from twinpool.errors import DeadlineExceeded
from twinpool.session import messages as m
from twinpool.session.messages import ReleaseReason
from twinpool.types import FinishReason, Token


@pytest.fixture(autouse=True)
def _two_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "NUM_CHOICES", 2)


def both_decode(fleet: SmallFleet, *, timeout_s: float | None = None) -> None:
    """Request r's choices 0 and 1 decode as the first two tries; their logs are 21, 31 and 22, 32."""
    assert reserved(fleet.arrives(request(timeout_s=timeout_s))) == [("d0", handoff(1)), ("d0", handoff(2))]
    for index, number in enumerate((1, 2)):
        (prefill,) = sent(fleet.grants(number))
        assert isinstance(prefill, m.Prefill)
        assert prefill.attempts == (m.Attempt(attempt(number), index),)
        commands = fleet.reads(21 + index, number=number)
        assert emitted(commands) == [Output(index, (Token(21 + index),))]
        (admit,) = sent(commands)
        assert isinstance(admit, m.Admit)
        assert admit.choice_index == index
        fleet.writes(number)
    commands = fleet.steps(
        m.RowToken(attempt(1), 1, Token(31), None), m.RowToken(attempt(2), 1, Token(32), None)
    )
    assert emitted(commands) == [Output(0, (Token(31),)), Output(1, (Token(32),))]


def phases(fleet: SmallFleet) -> dict[int, Phase]:
    return {index: choice.phase for index, choice in fleet.scheduler.requests["r"].choices.items()}


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_a_request_ends_with_its_last_choice(first: int, second: int) -> None:
    fleet = SmallFleet()
    both_decode(fleet)
    for index, is_last in ((first, False), (second, True)):
        commands = fleet.steps(m.RowToken(attempt(index + 1), 2, Token(0), FinishReason.STOP))
        (emit,) = [each for each in commands if isinstance(each, Emit)]
        assert (emit.output.choice_index, emit.last) == (index, is_last)
        assert emit.output.ending is not None
        assert ("r" in fleet.scheduler.requests) is not is_last
    assert fleet.forgot_everything()


def test_a_choice_that_is_set_back_leaves_the_other_alone_and_resumes_under_its_index() -> None:
    fleet = SmallFleet()
    both_decode(fleet)
    commands = fleet.releases(ReleaseReason.FAILED, 2)
    assert setbacks(commands) == [("r", Setback.ENGINE_FAILED, True)]
    assert phases(fleet) == {0: Phase.DECODING, 1: Phase.RESERVING}
    fleet.grants(3)
    assert emitted(fleet.reads(42, number=3, position=2)) == [Output(1, (Token(42),))]


def test_a_choice_that_fails_for_good_fails_the_request() -> None:
    fleet = SmallFleet(limits=replace(LIMITS, most_attempts=1))
    both_decode(fleet)
    commands = fleet.releases(ReleaseReason.FAILED, 2)
    assert list(failures(commands)) == ["r"]
    assert sent(commands) == [m.Drop(attempt(1))]
    assert fleet.forgot_everything()


def test_a_lost_worker_fails_the_request_of_all_its_choices_once() -> None:
    fleet = SmallFleet(limits=replace(LIMITS, most_attempts=1))
    both_decode(fleet)
    assert list(failures(fleet.goes_down("d0"))) == ["r"]
    assert fleet.forgot_everything()


def test_an_abort_ends_every_choice_well_and_a_cancel_none() -> None:
    aborted, cancelled = SmallFleet(), SmallFleet()
    both_decode(aborted)
    commands = aborted.feed(Aborted("r"))
    ends = [(each.output.choice_index, each.last) for each in commands if isinstance(each, Emit)]
    assert ends == [(0, False), (1, True)]
    both_decode(cancelled)
    commands = cancelled.feed(Cancelled("r"))
    assert sent(commands) == [m.Drop(attempt(1)), m.Drop(attempt(2))]
    assert not emitted(commands)
    assert aborted.forgot_everything()
    assert cancelled.forgot_everything()


def test_a_deadline_ends_all_choices_with_one_error() -> None:
    fleet = SmallFleet()
    both_decode(fleet, timeout_s=2.0)
    (error,) = failures(fleet.passes(2.0)).values()
    assert isinstance(error, DeadlineExceeded)
    assert error.phase == "decode"
    assert fleet.forgot_everything()


def test_a_queued_request_counts_once_with_all_its_choices() -> None:
    fleet = SmallFleet(joined=False)
    fleet.arrives(request())
    assert (fleet.scheduler.queue.num_requests, len(fleet.scheduler.queue)) == (1, 2)


def test_a_cut_ends_its_own_choice_alone() -> None:
    fleet = SmallFleet()
    both_decode(fleet)
    commands = fleet.feed(Cut("r", 1, 1))
    assert sent(commands) == [m.Drop(attempt(2))]
    (emit,) = (command for command in commands if isinstance(command, Emit))
    assert emit.output.ending is not None
    assert (emit.output.choice_index, emit.output.ending.usage.completion_tokens) == (1, 1)
    assert not emit.last
    assert phases(fleet) == {0: Phase.DECODING}
    assert fleet.feed(Cut("r", 1, 1)) == []
