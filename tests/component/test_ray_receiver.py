"""The receiver of the `ray` transport when words meet in it; no cluster, so that a copy can be held up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.workers.handoff_ends import (
    SMALL,
    WAIT_S,
    DecodeBlocks,
    ReceiverLog,
    identity,
    in_thread,
    join,
)
from twinpool.kv.pool import Owner
from twinpool.kv.reservations import Opened
from twinpool.kv.storage import KvStorage
from twinpool.session.messages import LoadReport, Released
from twinpool.transfer import ray_receiver
from twinpool.transfer.port import HandoffRefused, ReceiverEvents
from twinpool.transfer.ray_receiver import STOPPED, RayReceiver
from twinpool.types import HandoffId

WRITER = "prefill-0-bb"
UNKNOWN = "does not know this pair"


@pytest.fixture(autouse=True)
def chunks_travel_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_receiver, "ray", SimpleNamespace(get=lambda reference, timeout: reference))


class SlowChunk:
    """One block that is copied only once it is let go."""

    def __init__(self, byte: int) -> None:
        self._block = np.full(SMALL.block_bytes, byte, dtype=np.uint8)
        self.copying = threading.Event()
        self.go_on = threading.Event()

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        self.copying.set()
        assert self.go_on.wait(WAIT_S)
        yield self._block


class Sender:
    """Says words to a receiver directly, as the actor's threads do."""

    def __init__(self, receiver: RayReceiver, writer: str = WRITER) -> None:
        self._receiver = receiver
        self.pair = receiver.hear("join", identity(writer).hello())["pair"]

    def say(self, word: str, *arguments: Any) -> Any:
        return self._receiver.hear(word, self.pair, *arguments)

    def push(self, attempt: str, first: int, chunk: Any) -> Any:
        return self.say("push", attempt, first, [chunk])


def chunk_of(byte: int, num_blocks: int = 1) -> Any:
    return np.full((num_blocks, SMALL.block_bytes), byte, dtype=np.uint8)


def listening(events: ReceiverEvents, storage: KvStorage | None = None) -> RayReceiver:
    return RayReceiver(identity("decode-0-aa"), storage or KvStorage(SMALL, 8), events, WAIT_S)


def with_custody() -> tuple[DecodeBlocks, RayReceiver]:
    blocks = DecodeBlocks(KvStorage(SMALL, 8))
    receiver = listening(blocks.custody, blocks.storage)
    blocks.custody.attach(receiver)
    return blocks, receiver


def test_revoke_does_not_wait_for_the_copy_in_progress_but_the_blocks_do() -> None:
    blocks, receiver = with_custody()
    sender = Sender(receiver)
    blocks.reserve(HandoffId("a"), 2, WRITER)
    assert sender.say("begin", "a")
    chunk = SlowChunk(1)
    pushing = in_thread(lambda: sender.push("a", 0, chunk))
    assert chunk.copying.wait(WAIT_S)
    join(in_thread(lambda: blocks.custody.give_up(HandoffId("a"))))
    assert blocks.pool.count(Owner.QUARANTINE) == 2
    assert sender.push("a", 1, chunk_of(2)) == STOPPED
    blocks.heard.clear()
    chunk.go_on.set()
    join(pushing)
    assert blocks.heard.wait_for(LoadReport).blocks_free == 8


@pytest.mark.parametrize("word", ["stopped", "leave", "join", "close"])
def test_end_is_told_after_the_copy_in_progress(word: str) -> None:
    events = ReceiverLog(blocks={"a": (0, 1)})
    receiver = listening(events)
    sender = Sender(receiver)
    assert sender.say("begin", "a")
    chunk = SlowChunk(1)
    pushing = in_thread(lambda: sender.push("a", 0, chunk))
    assert chunk.copying.wait(WAIT_S)
    match word:
        case "stopped":
            sender.say("stopped", "a")
        case "leave":
            sender.say("leave")
        case "join":
            Sender(receiver)  # the same writer, anew
        case _:
            receiver.close()
    assert events.last_words(HandoffId("a")) == []
    chunk.go_on.set()
    join(pushing)
    assert events.last_words(HandoffId("a")) == ["stopped"]
    if word == "stopped":
        assert sender.push("a", 1, chunk_of(2)) == STOPPED
    else:
        with pytest.raises(HandoffRefused, match=UNKNOWN):
            sender.push("a", 1, chunk_of(2))


class _RevokedAtOnce(ReceiverLog):
    """Opens the reservation, and takes it back before anybody knows."""

    receiver: RayReceiver

    def begin(self, writer: str, attempt: str) -> Opened | None:
        self.receiver.stop(writer, HandoffId(attempt))
        return super().begin(writer, HandoffId(attempt))


def test_revoke_during_begin_frees_the_blocks_and_refuses() -> None:
    events = _RevokedAtOnce(blocks={"a": (0, 1)})
    events.receiver = listening(events)
    assert not Sender(events.receiver).say("begin", "a")
    # Once when it was revoked, and once more now that it cannot have been too early.
    assert events.heard()[-1] == ("stopped", WRITER, "a")


def test_only_own_blocks_are_asked_for_and_shared_ones_are_told() -> None:
    events = ReceiverLog(blocks={"a": (4, 2)}, num_shared=3)
    storage = KvStorage(SMALL, 8)
    sender = Sender(listening(events, storage))
    assert sender.say("begin", "a") == (2, 3)
    assert sender.say("begin", "unknown") is None
    sender.push("a", 0, chunk_of(9, 2))
    assert storage.blocks.max(axis=1).tolist() == [0, 0, 9, 0, 9, 0, 0, 0]


def test_written_waits_for_the_pushes_that_it_overtook() -> None:
    events = ReceiverLog(blocks={"a": (4, 2, 0)})
    storage = KvStorage(SMALL, 8)
    sender = Sender(listening(events, storage))
    assert sender.say("begin", "a")
    sender.say("written", "a", 2, [7, 8, 9])
    sender.push("a", 2, chunk_of(3))
    assert events.last_words(HandoffId("a")) == []
    sender.push("a", 0, chunk_of(1, 2))
    assert ("written", WRITER, "a", 3, (7, 8, 9)) in events.heard()
    assert storage.blocks[:, 0].tolist() == [3, 0, 1, 0, 1, 0, 0, 0]


def test_failed_push_is_not_counted() -> None:
    events = ReceiverLog(blocks={"a": (4,)})
    sender = Sender(listening(events))
    assert sender.say("begin", "a")
    with pytest.raises(ValueError, match="reserved 1 blocks"):
        sender.push("a", 0, chunk_of(1, 2))
    sender.say("written", "a", 1, [])
    assert events.last_words(HandoffId("a")) == []
    sender.say("stopped", "a")
    assert events.last_words(HandoffId("a")) == ["stopped"]


def test_renewal_is_progress_until_the_attempt_ends() -> None:
    events = ReceiverLog(blocks={"a": (4,)})
    sender = Sender(listening(events))
    assert sender.say("begin", "a")
    assert sender.say("renew", "a") != STOPPED
    assert events.heard()[-1] == ("progress", WRITER, "a")
    sender.say("stopped", "a")
    assert sender.say("renew", "a") == STOPPED
    assert events.heard()[-1] == ("stopped", WRITER, "a")


SAID_LATER: dict[str, tuple[Any, ...]] = {
    "begin": ("a",),
    "push": ("a", 0, [chunk_of(1)]),
    "renew": ("a",),
    "written": ("a", 1, []),
    "stopped": ("a",),
}


@pytest.mark.parametrize("word", SAID_LATER)
@pytest.mark.parametrize("ends", ["leave", "writer gone", "close"])
def test_words_over_a_pair_that_is_not_joined_break_it(word: str, ends: str) -> None:
    """Its sender believes in it; an answer like any other would leave it so for ever."""
    events = ReceiverLog(blocks={"a": (4,)})
    receiver = listening(events)
    sender = Sender(receiver)
    match ends:
        case "leave":
            sender.say("leave")
        case "close":
            receiver.close()
        case _:
            receiver.writer_gone(WRITER)
    with pytest.raises(HandoffRefused, match=UNKNOWN):
        sender.say(word, *SAID_LATER[word])
    assert sender.say("leave") is None
    assert events.heard() == []


def test_chunk_for_which_there_is_no_attempt_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender(listening(ReceiverLog()))
    monkeypatch.setattr(ray_receiver, "ray", None)
    assert sender.push("a", 0, chunk_of(1)) == STOPPED


def test_chunk_that_does_not_come_in_time_fails_its_push_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(reference: Any, timeout: float) -> None:
        raise TimeoutError(f"{timeout:g} s")

    events = ReceiverLog(blocks={"a": (4,)})
    sender = Sender(listening(events))
    assert sender.say("begin", "a")
    monkeypatch.setattr(ray_receiver, "ray", SimpleNamespace(get=get))
    with pytest.raises(TimeoutError, match=f"{WAIT_S:g} s"):
        sender.push("a", 0, chunk_of(1))
    sender.say("stopped", "a")
    assert events.last_words(HandoffId("a")) == ["stopped"]


def test_attempt_begins_once() -> None:
    events = ReceiverLog(blocks={"a": (4,)})
    sender = Sender(listening(events))
    assert sender.say("begin", "a")
    assert not sender.say("begin", "a")
    sender.say("written", "a", 0, [])
    assert events.last_words(HandoffId("a")) == ["written"]


def test_cache_that_could_not_be_taken_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, receiver = with_custody()
    blocks.reserve(HandoffId("a"), 2, WRITER)
    sender = Sender(receiver)
    sender.say("begin", "a")

    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(blocks.custody, "written", fail)
    with pytest.raises(RuntimeError):
        sender.say("written", "a", 0, [])
    assert blocks.num_free() == 8


def test_unknown_word_is_an_error() -> None:
    sender = Sender(listening(ReceiverLog()))
    with pytest.raises(ValueError, match="unknown word 'sing'"):
        sender.say("sing")


def test_every_attempt_ends_and_frees_its_blocks_whatever_meets() -> None:
    blocks, receiver = with_custody()
    sender = Sender(receiver)

    def write(attempt: str) -> None:
        sender.push(attempt, 0, chunk_of(1))
        sender.push(attempt, 1, chunk_of(2))

    for number in range(300):
        handoff = HandoffId(f"a{number}")
        blocks.reserve(handoff, 2, WRITER)
        assert sender.say("begin", handoff)
        meeting = [
            in_thread(lambda handoff=handoff: write(handoff)),  # type: ignore[misc]
            in_thread(lambda handoff=handoff: sender.say("written", handoff, 2, [])),  # type: ignore[misc]
            in_thread(lambda handoff=handoff: blocks.custody.give_up(handoff)),  # type: ignore[misc]
        ]
        for thread in meeting:
            join(thread)
        blocks.custody.give_up(handoff)
        assert blocks.num_free() == 8
    assert {event.holder for event in blocks.heard() if isinstance(event, Released)} == {
        f"a{number}" for number in range(300)
    }
