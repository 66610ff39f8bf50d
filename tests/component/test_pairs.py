"""A worker's pairs: joined, left and broken by several threads, in whatever order they meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from tests.support.workers.handoff_ends import WAIT_S, Heard, in_thread, join
from twinpool.session.messages import JoinPair, PairBroken, PairJoined
from twinpool.transfer.pairs import Pairs
from twinpool.transfer.port import HandoffRefused, HandoffSender, SenderEvents
from twinpool.transfer.words import Accepted, Ended, Ending, PairLost, PairWord
from twinpool.types import HandoffEndpoint, HandoffId
from twinpool.worker.inbox import Inbox

JOIN = JoinPair("decode-0-aa", HandoffEndpoint())
DECODE = JOIN.decode
JOINED = PairJoined(DECODE, "fake")


class FakeSender:
    """Notes its end, which may be held up."""

    transport = "fake"

    def __init__(self) -> None:
        self.may_close = threading.Event()
        self.may_close.set()
        self.closing = threading.Event()
        self.closed = threading.Event()

    def begin(self, attempt: str) -> None:
        raise NotImplementedError

    def push(self, attempt: str, source_blocks: Sequence[int], first: int) -> bool:
        raise NotImplementedError

    def renew(self, attempt: str) -> None:
        raise NotImplementedError

    def written(self, attempt: str) -> bool:
        raise NotImplementedError

    def stopped(self, attempt: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closing.set()
        assert self.may_close.wait(WAIT_S)
        self.closed.set()


class Fleet:
    """Pairs whose connections are made by the test: each join waits for `answer`, if that is held."""

    def __init__(self) -> None:
        self.inbox: Inbox[PairWord] = Inbox()
        self.heard = Heard()
        self.pairs = Pairs(self._connect, self.inbox.post, self.heard.add)
        self.joins = Heard()
        self.may_connect = threading.Event()
        self.may_connect.set()
        self.while_connecting: Callable[[SenderEvents], None] = lambda events: None

    def _connect(self, command: JoinPair, events: SenderEvents) -> HandoffSender:
        sender = FakeSender()
        self.joins.add((sender, events))
        assert self.may_connect.wait(WAIT_S)
        self.while_connecting(events)
        return sender

    def join(self) -> tuple[FakeSender, SenderEvents]:
        """Ask for the pair; its sender and who hears it, once that is being connected."""
        self.joins.clear()
        self.pairs.join(JOIN)
        sender, events = self.joins.wait_for(lambda _: True)
        return sender, events

    def opened(self) -> tuple[FakeSender, SenderEvents]:
        joined = self.join()
        self.heard.wait_for(JOINED)
        return joined

    def posted(self) -> list[PairWord]:
        return self.inbox.take(0.0)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_pair_opens_and_is_told(fleet: Fleet) -> None:
    sender, _ = fleet.opened()
    assert fleet.pairs.senders == {DECODE: sender}


def test_open_pair_is_told_again_and_a_joining_one_is_not_joined_twice(fleet: Fleet) -> None:
    fleet.may_connect.clear()
    fleet.join()
    fleet.pairs.join(JOIN)
    fleet.may_connect.set()
    fleet.heard.wait_for(JOINED)
    assert len(fleet.joins()) == 1
    fleet.heard.clear()
    fleet.pairs.join(JOIN)
    assert fleet.heard() == [JOINED]
    assert len(fleet.joins()) == 1


def test_pair_that_cannot_open_is_told_and_may_be_tried_again(fleet: Fleet) -> None:
    def refuse(events: SenderEvents) -> None:
        raise HandoffRefused("dtype differs")

    fleet.while_connecting = refuse
    fleet.join()
    fleet.heard.wait_for(PairBroken(DECODE, "HandoffRefused: dtype differs"))
    assert not fleet.pairs.senders
    fleet.while_connecting = lambda events: None
    fleet.opened()


def test_words_of_the_transport_reach_the_engine(fleet: Fleet) -> None:
    _, events = fleet.opened()
    events.accepted(HandoffId("a"), 3)
    events.refused(HandoffId("b"))
    events.stop_requested(HandoffId("c"))
    assert fleet.posted() == [
        Accepted(HandoffId("a"), 3),
        Ended(HandoffId("b"), Ending.REFUSED),
        Ended(HandoffId("c"), Ending.STOPPED),
    ]


def test_broken_pair_is_told_and_its_sender_gone_before_the_engine_hears(fleet: Fleet) -> None:
    _, events = fleet.opened()
    events.pair_broken(DECODE, "reset")
    assert not fleet.pairs.senders
    assert fleet.posted() == [PairLost(DECODE, "reset")]
    assert fleet.heard()[-1] == PairBroken(DECODE, "reset")


def test_pair_that_breaks_while_it_is_joining_never_opens(fleet: Fleet) -> None:
    fleet.while_connecting = lambda events: events.pair_broken(DECODE, "reset")
    sender, _ = fleet.join()
    assert sender.closed.wait(WAIT_S)
    assert fleet.heard() == [PairBroken(DECODE, "reset")]
    assert not fleet.pairs.senders
    fleet.while_connecting = lambda events: None
    fleet.opened()


def test_pair_that_is_left_while_it_is_joining_never_opens(fleet: Fleet) -> None:
    fleet.may_connect.clear()
    sender, _ = fleet.join()
    fleet.pairs.leave(DECODE)
    fleet.may_connect.set()
    assert sender.closed.wait(WAIT_S)
    assert fleet.heard() == []
    assert not fleet.pairs.senders


def test_leaving_does_not_wait_for_the_sender_to_close(fleet: Fleet) -> None:
    sender, _ = fleet.opened()
    sender.may_close.clear()
    join(in_thread(lambda: fleet.pairs.leave(DECODE)))
    assert sender.closing.wait(WAIT_S)
    assert fleet.posted() == [PairLost(DECODE, "the pair was closed")]
    assert not fleet.pairs.senders
    sender.may_close.set()


def test_late_end_of_an_older_pair_does_not_touch_the_newer(fleet: Fleet) -> None:
    _, older = fleet.opened()
    fleet.pairs.leave(DECODE)
    fleet.heard.clear()
    newer, _ = fleet.opened()
    fleet.posted()
    older.pair_broken(DECODE, "late")
    assert fleet.pairs.senders == {DECODE: newer}
    assert fleet.posted() == []
    assert fleet.heard() == [JOINED]


def test_leaving_a_pair_that_is_not_there_is_nothing(fleet: Fleet) -> None:
    fleet.pairs.leave(DECODE)
    assert fleet.posted() == []


def test_close_waits_for_all_senders_and_joins_nothing_more(fleet: Fleet) -> None:
    open_sender, _ = fleet.opened()
    open_sender.may_close.clear()
    closing = in_thread(fleet.pairs.close)
    assert open_sender.closing.wait(WAIT_S)
    assert closing.is_alive()
    open_sender.may_close.set()
    join(closing)
    assert open_sender.closed.is_set()
    fleet.joins.clear()
    fleet.pairs.join(JOIN)
    assert fleet.joins() == []
