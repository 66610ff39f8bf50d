"""The end of an `shm` connection, which proves that no byte follows: by whom, when, and who hears of it."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.workers.handoff_ends import (
    LARGE,
    SMALL,
    WAIT_S,
    ReceiverLog,
    SenderLog,
    in_thread,
    join,
    random_storage,
)
from tests.support.workers.sender_process import NUM_BLOCKS as NUM_SENT
from tests.support.workers.sender_process import SenderProcess
from tests.support.workers.shm_bench import DECODE, WRITER, ShmBench
from twinpool.kv.pool import Owner
from twinpool.kv.storage import KvStorage, copy_blocks
from twinpool.session.messages import LoadReport, QuarantineOverdue, Released, ReleaseReason
from twinpool.transfer import shm_receiver, shm_sender
from twinpool.transfer.framing import bound_sends
from twinpool.transfer.shm_sender import ShmSender
from twinpool.types import HandoffId


class _SlowCopy:
    """Stands in for the copying of blocks; each copy waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.done = threading.Event()
        monkeypatch.setattr(shm_sender, "copy_blocks", self._copy)

    def _copy(self, src: KvStorage, src_ids: Sequence[int], dst: KvStorage, dst_ids: Sequence[int]) -> None:
        self.started.set()
        assert self.go_on.wait(WAIT_S)
        copy_blocks(src, src_ids, dst, dst_ids)
        self.done.set()


class _EndAfterCopy(ReceiverLog):
    """Notes whether the copy was done when the end came."""

    copy: _SlowCopy

    def connection_ended(self, writer: str) -> None:
        self.heard.add(("copy done", self.copy.done.is_set()))
        super().connection_ended(writer)

    def stopped(self, writer: str, attempt: str) -> None:
        self.heard.add(("copy done", self.copy.done.is_set()))
        super().stopped(writer, HandoffId(attempt))


def _no_buffers(*_: Any) -> None:
    raise OSError("no buffer space")


def _heard_within(events: ReceiverLog, seconds: float) -> bool:
    try:
        events.heard.wait_for(lambda each: each[0] == "copy done", seconds)
    except AssertionError:
        return False
    return True


def test_killed_writer_ends_the_connection_and_frees_its_quarantine(bench: ShmBench) -> None:
    blocks, receiver = bench.decode(LARGE)
    blocks.reserve(HandoffId("a"), NUM_SENT, WRITER)
    blocks.reserve(HandoffId("b"), 2, WRITER)
    with SenderProcess(receiver.path, DECODE, WRITER) as sender:
        sender.tell("begin a")
        sender.heard.wait_for("accepted a 0")
        sender.tell("begin b")
        sender.heard.wait_for("accepted b 0")
        sender.tell("hammer a")
        sender.heard.wait_for("hammering a")
        sender.suspend()  # it answers no `stop`, so the blocks are in quarantine when it dies
        assert blocks.custody.give_up(HandoffId("a")) is None
        assert blocks.pool.count(Owner.QUARANTINE) == NUM_SENT
        sender.signal(signal.SIGKILL)
        blocks.heard.wait_for(lambda event: isinstance(event, LoadReport) and not event.blocks_quarantined)
        released = blocks.heard.wait_for(lambda event: isinstance(event, Released) and event.holder == "b")
    assert (released.reason, released.detail) == (
        ReleaseReason.CONNECTION_ENDED,
        "the hand-off connection ended",
    )
    assert blocks.num_free() == 8


def test_writer_killed_in_the_middle_of_a_push_frees_its_blocks(bench: ShmBench) -> None:
    blocks, receiver = bench.decode(LARGE)
    blocks.reserve(HandoffId("a"), NUM_SENT, WRITER)
    with SenderProcess(receiver.path, DECODE, WRITER) as sender:
        sender.tell("begin a")
        sender.heard.wait_for("accepted a 0")
        sender.tell("hammer a")
        sender.heard.wait_for("hammering a")
        sender.signal(signal.SIGKILL)
        blocks.heard.wait_for(lambda event: isinstance(event, Released) and event.holder == "a")
    assert blocks.num_free() == 8


def test_stopped_writer_keeps_its_blocks_in_quarantine_however_long_and_is_reported_while_it_lasts(
    bench: ShmBench,
) -> None:
    blocks, receiver = bench.decode(LARGE)
    blocks.reserve(HandoffId("a"), NUM_SENT, WRITER)
    with SenderProcess(receiver.path, DECODE, WRITER) as sender:
        sender.tell("begin a")
        sender.heard.wait_for("accepted a 0")
        sender.tell("hammer a")
        sender.heard.wait_for("hammering a")
        sender.suspend()
        assert blocks.custody.give_up(HandoffId("a")) is None
        for _ in range(100):
            blocks.now += 10.0
            blocks.custody.expire()
        assert blocks.pool.count(Owner.QUARANTINE) == NUM_SENT
        assert [event for event in blocks.heard() if isinstance(event, QuarantineOverdue)] == [
            QuarantineOverdue(HandoffId("a"), WRITER)
        ] * 100
        sender.signal(signal.SIGKILL)
        blocks.heard.wait_for(lambda event: isinstance(event, LoadReport) and event.blocks_free == 8)


def test_stopped_writer_lets_go_when_it_runs_again(bench: ShmBench) -> None:
    blocks, receiver = bench.decode(LARGE)
    blocks.reserve(HandoffId("a"), NUM_SENT, WRITER)
    with SenderProcess(receiver.path, DECODE, WRITER) as sender:
        sender.tell("begin a")
        sender.heard.wait_for("accepted a 0")
        sender.tell("hammer a")
        sender.heard.wait_for("hammering a")
        sender.suspend()
        assert blocks.custody.give_up(HandoffId("a")) is None
        sender.signal(signal.SIGCONT)
        blocks.heard.wait_for(lambda event: isinstance(event, LoadReport) and event.blocks_free == 8)
        sender.heard.wait_for("stop a")


def test_senders_close_is_heard_as_the_end_and_not_as_a_broken_pair(bench: ShmBench) -> None:
    blocks, receiver = bench.decode()
    log = SenderLog()
    sender = bench.connect(receiver, log)
    blocks.reserve(HandoffId("a"), 2, WRITER)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))
    sender.close()
    blocks.heard.wait_for(Released)
    assert log.heard() == [("accepted", "a", 0)]
    assert not sender.push(HandoffId("a"), [0], 0)
    assert not sender.written(HandoffId("a"))
    sender.begin(HandoffId("b"))
    sender.stopped(HandoffId("b"))


@pytest.mark.parametrize("how", ["sender closes", "receiver hangs up", "receiver stops", "a send fails"])
def test_nothing_ends_before_the_copy_in_progress(
    bench: ShmBench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    log, events = SenderLog(), _EndAfterCopy(blocks={"a": (0, 1)})
    events.copy = _SlowCopy(monkeypatch)
    _, receiver = bench.listen(events)
    sender = bench.connect(receiver, log)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))
    pushing = in_thread(lambda: sender.push(HandoffId("a"), [0, 1], 0))
    assert events.copy.started.wait(WAIT_S)
    match how:
        case "sender closes":
            ending = in_thread(sender.close)
        case "receiver hangs up":
            ending = in_thread(receiver.close)
        case "receiver stops":
            ending = in_thread(lambda: receiver.stop(WRITER, HandoffId("a")))
        case _:
            monkeypatch.setattr(shm_sender, "send_frame", _no_buffers)
            ending = in_thread(lambda: sender.begin(HandoffId("b")))
    # Were the end told too early, it would be here by now.
    assert not _heard_within(events, 0.2)
    events.copy.go_on.set()
    events.heard.wait_for(lambda each: each[0] in ("ended", "stopped"))
    assert ("copy done", True) in events.heard()
    assert ("copy done", False) not in events.heard()
    join(pushing)
    join(ending)


def test_receiver_that_reads_nothing_breaks_the_pair_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        bound_sends(ours, 0.1)
        log = SenderLog()
        sender = ShmSender(ours, DECODE, random_storage(SMALL, 1), random_storage(SMALL, 1), log, False)
        started_at = time.monotonic()
        while not log.heard() and time.monotonic() - started_at < WAIT_S:
            sender.begin(HandoffId("x" * 4096))
        log.wait_until_broken()
        sender.close()


def test_sender_that_reads_nothing_is_hung_up_on_without_holding_up_others(bench: ShmBench) -> None:
    events = ReceiverLog()
    _, receiver = bench.listen(events)
    sock = bench.raw(receiver, writer=WRITER)
    for number in range(2000):  # far more than its socket takes, all of it said within a bound
        receiver.stop(WRITER, HandoffId(f"{number}-" + "x" * 1024))
    while sock.recv(65536):  # its end: it was hung up on
        pass
    sock.close()
    events.heard.wait_for(("ended", WRITER))


def test_closing_receiver_breaks_its_pairs_and_frees_its_name(bench: ShmBench) -> None:
    log, events = SenderLog(), ReceiverLog()
    _, receiver = bench.listen(events)
    bench.connect(receiver, log)
    receiver.close()
    assert ("ended", WRITER) in events.heard()
    log.wait_until_broken()
    with pytest.raises(ConnectionRefusedError):
        bench.connect(receiver, SenderLog())
    _, another = bench.listen(events)
    bench.connect(another, SenderLog())


def test_closing_receiver_ends_a_handshake_that_hangs(
    bench: ShmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_receiver, "HANDSHAKE_TIMEOUT_S", 1000.0)  # so that this does not end it
    _, receiver = bench.listen(ReceiverLog())
    sock = bench.raw(receiver)
    receiver.close()
    assert sock.recv(1) == b""
