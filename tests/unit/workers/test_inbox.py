"""Messages from any thread are taken in order, all at once."""

from __future__ import annotations

from twinpool.worker.inbox import Inbox


def test_all_messages_are_taken_in_order_and_once() -> None:
    inbox: Inbox[int] = Inbox()
    for number in range(3):
        inbox.post(number)
    assert inbox.take(0) == [0, 1, 2]
    assert inbox.take(0) == []


def test_whoever_waits_for_a_message_that_is_there_does_not_wait() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.post(1)
    inbox.post(2)
    assert inbox.take(3600) == [1, 2]
