"""The `shm` transport: one cache on its way, and who may write it until when."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.support.workers.handoff_ends import (
    ATTEMPT,
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
from tests.support.workers.sender_process import SEED, SenderProcess
from tests.support.workers.shm_bench import DECODE, WRITER, ShmBench
from twinpool.kv.pool import Owner
from twinpool.kv.storage import KvStorage
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import Admit, LoadReport, Released, ReleaseReason, Written
from twinpool.transfer.framing import receive_frame, send_frame
from twinpool.types import HandoffId

PARAMS = SamplingParams(max_tokens=8)
SENTINEL = 0xAB

# The way of one cache.


def test_blocks_arrive_bit_exact_and_open_the_row(bench: ShmBench) -> None:
    blocks, receiver = bench.decode()
    log, source = SenderLog(), random_storage(SMALL, 8)
    sender = bench.connect(receiver, log, source)
    reserved = blocks.reserve(HandoffId("a"), 3, WRITER)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))
    assert sender.push(HandoffId("a"), [5, 2], 0)
    assert sender.push(HandoffId("a"), [7], 2)
    assert sender.written(HandoffId("a"))
    blocks.heard.wait_for(lambda event: isinstance(event, Written) and event.handoff == "a")
    assert np.array_equal(blocks.bytes_of(reserved), source.blocks[[5, 2, 7]])
    blocks.custody.admit(Admit(ATTEMPT, HandoffId("a"), 0, (1,) * 10, (1,), PARAMS))
    assert [row.blocks for row in blocks.rows] == [reserved]


def test_blocks_arrive_bit_exact_from_another_process(bench: ShmBench) -> None:
    blocks, receiver = bench.decode(LARGE)
    reserved = blocks.reserve(HandoffId("a"), NUM_SENT, WRITER)
    with SenderProcess(receiver.path, DECODE, WRITER) as sender:
        sender.tell("begin a")
        sender.heard.wait_for("accepted a 0")
        sender.tell("push a")
        sender.tell("written a")
        written = blocks.heard.wait_for(Written)
        assert written.num_bytes == NUM_SENT * LARGE.block_bytes
        source = random_storage(LARGE, NUM_SENT, SEED)
        assert np.array_equal(blocks.bytes_of(reserved), source.blocks)


def test_only_own_blocks_are_sent_and_shared_ones_are_told(bench: ShmBench) -> None:
    log, events = SenderLog(), ReceiverLog(blocks={"a": (6, 0)}, num_shared=3)
    storage, receiver = bench.listen(events)
    source = random_storage(SMALL, 8)
    sender = bench.connect(receiver, log, source, checksum=True)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 3))
    assert sender.push(HandoffId("a"), [4, 5], 0)
    assert sender.written(HandoffId("a"))
    checksums = (source.block_checksum(4), source.block_checksum(5))
    events.heard.wait_for(("written", WRITER, "a", 2, checksums))
    assert np.array_equal(storage.blocks[[6, 0]], source.blocks[[4, 5]])
    assert not storage.blocks[1:6].any()


def test_blocks_may_be_pushed_in_any_order(bench: ShmBench) -> None:
    log, events = SenderLog(), ReceiverLog(blocks={"a": (6, 0, 3)})
    storage, receiver = bench.listen(events)
    source = random_storage(SMALL, 8)
    sender = bench.connect(receiver, log, source, checksum=True)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))
    for index in (2, 0, 1):
        assert sender.push(HandoffId("a"), [index + 4], index)
    assert sender.written(HandoffId("a"))
    checksums = tuple(source.block_checksum(block) for block in (4, 5, 6))
    events.heard.wait_for(("written", WRITER, "a", 3, checksums))
    assert np.array_equal(storage.blocks[[6, 0, 3]], source.blocks[[4, 5, 6]])


@pytest.mark.parametrize("why", ["no reservation", "another's", "expired", "revoked"])
def test_begin_is_refused_without_a_reservation_for_this_writer(bench: ShmBench, why: str) -> None:
    blocks, receiver = bench.decode()
    log = SenderLog()
    sender = bench.connect(receiver, log)
    if why != "no reservation":
        blocks.reserve(HandoffId("a"), 2, "somebody else" if why == "another's" else WRITER, ttl_s=1.0)
    if why == "expired":
        blocks.now += 1.0
        blocks.custody.expire()
    if why == "revoked":
        assert blocks.custody.give_up(HandoffId("a")) is None
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("refused", "a"))
    assert not sender.push(HandoffId("a"), [0], 0)
    assert not sender.written(HandoffId("a"))


@pytest.mark.parametrize("word", ["push", "renew"])
def test_progress_renews_the_reservation(bench: ShmBench, word: str) -> None:
    blocks, receiver = bench.decode()
    log = SenderLog()
    sender = bench.connect(receiver, log)
    blocks.reserve(HandoffId("a"), 3, WRITER, ttl_s=1.0)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))
    for index in range(3):
        blocks.now += 0.75
        if word == "push":
            assert sender.push(HandoffId("a"), [index], index)
        else:
            sender.renew(HandoffId("a"))
        sender.begin(
            HandoffId(f"after {index}")
        )  # refused; messages keep their order, so the progress was heard
        log.heard.wait_for(("refused", f"after {index}"))
        blocks.custody.expire()
    assert sender.written(HandoffId("a"))
    blocks.heard.wait_for(Written)


def test_push_beyond_the_reservation_writes_nothing(bench: ShmBench) -> None:
    log, events = SenderLog(), ReceiverLog(blocks={"a": (6, 0)})
    storage, receiver = bench.listen(events)
    sender = bench.connect(receiver, log)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))
    with pytest.raises(ValueError, match="reserved 2 blocks"):
        sender.push(HandoffId("a"), [1, 2, 3], 0)
    assert not storage.blocks.any()


def test_sender_that_gives_up_fails_the_hand_off_and_frees_the_blocks(bench: ShmBench) -> None:
    blocks, receiver = bench.decode()
    log = SenderLog()
    sender = bench.connect(receiver, log)
    blocks.reserve(HandoffId("a"), 2, WRITER)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))
    sender.stopped(HandoffId("a"))
    released = blocks.heard.wait_for(Released)
    assert released.reason is ReleaseReason.HANDOFF_FAILED
    assert blocks.num_free() == 8
    assert not sender.push(HandoffId("a"), [0], 0)


def test_sender_may_give_up_before_begin_is_answered(bench: ShmBench) -> None:
    blocks, receiver = bench.decode()
    sender = bench.connect(receiver, SenderLog())
    blocks.reserve(HandoffId("a"), 2, WRITER)
    sender.begin(HandoffId("a"))
    sender.stopped(HandoffId("a"))
    blocks.heard.wait_for(lambda event: isinstance(event, Released) and event.holder == "a")
    assert blocks.num_free() == 8


def test_damaged_block_fails_the_hand_off_and_is_named(bench: ShmBench) -> None:
    blocks, receiver = bench.decode(checksum=True)
    log = SenderLog()
    sender = bench.connect(receiver, log, checksum=True)
    reserved = blocks.reserve(HandoffId("a"), 3, WRITER)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))
    assert sender.push(HandoffId("a"), [0, 1, 2], 0)
    blocks.storage.blocks[reserved[1], 5] ^= 1
    assert sender.written(HandoffId("a"))
    released = blocks.heard.wait_for(Released)
    assert (released.reason, released.detail) == (
        ReleaseReason.DAMAGED,
        "checksum of block 1 differs",
    )
    assert blocks.num_free() == 8


# Revoked while it is written.


def test_stop_before_written_leaves_stopped_as_the_only_last_word(bench: ShmBench) -> None:
    log, events = SenderLog(), ReceiverLog(blocks={"a": (0, 1), "next": (2,)})
    _, receiver = bench.listen(events)
    sender = bench.connect(receiver, log)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))
    receiver.stop(WRITER, HandoffId("a"))
    log.heard.wait_for(("stop", "a"))
    assert not sender.push(HandoffId("a"), [0], 0)
    assert not sender.written(HandoffId("a"))
    sender.stopped(HandoffId("a"))
    sender.begin(HandoffId("next"))  # messages keep their order, so all of "a" was heard before
    log.heard.wait_for(("accepted", "next", 0))
    assert events.last_words(HandoffId("a")) == ["stopped"]


def test_stop_that_crosses_written_leaves_written_as_the_only_last_word(bench: ShmBench) -> None:
    log, events = SenderLog(), ReceiverLog(blocks={"a": (0, 1), "next": (2,)})
    _, receiver = bench.listen(events)
    sender = bench.connect(receiver, log)
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))
    assert sender.written(HandoffId("a"))
    receiver.stop(WRITER, HandoffId("a"))
    sender.begin(HandoffId("next"))
    log.heard.wait_for(("accepted", "next", 0))
    assert events.last_words(HandoffId("a")) == ["written"]
    assert ("stop", "a") not in log.heard()


def test_stop_and_written_at_once_leave_exactly_one_last_word(bench: ShmBench) -> None:
    attempts = [f"a{number}" for number in range(200)]
    log, events = SenderLog(), ReceiverLog(blocks=dict.fromkeys([*attempts, "next"], (0,)))
    _, receiver = bench.listen(events)
    sender = bench.connect(receiver, log)
    start = threading.Barrier(2)

    def stop_all() -> None:
        for attempt in attempts:
            start.wait(WAIT_S)
            receiver.stop(WRITER, HandoffId(attempt))

    stopping = in_thread(stop_all)
    for attempt in attempts:
        sender.begin(HandoffId(attempt))
        log.heard.wait_for(("accepted", attempt, 0))
        start.wait(WAIT_S)
        said = sender.written(HandoffId(attempt))
        if not said:
            log.heard.wait_for(("stop", attempt))
    join(stopping)
    sender.begin(HandoffId("next"))
    log.heard.wait_for(("accepted", "next", 0))
    assert {len(events.last_words(HandoffId(attempt))) for attempt in attempts} == {1}


@pytest.mark.parametrize("last_word", ["written", "stopped"])
def test_revoked_blocks_are_free_only_with_the_last_word(bench: ShmBench, last_word: str) -> None:
    blocks, receiver = bench.decode()
    sock = bench.raw(receiver, writer=WRITER)  # a sender that does not answer `stop` by itself
    blocks.reserve(HandoffId("a"), 3, WRITER)
    send_frame(sock, {"begin": "a"})
    assert "accepted" in (receive_frame(sock) or {})
    assert blocks.custody.give_up(HandoffId("a")) is None
    assert receive_frame(sock) == {"stop": "a"}
    assert blocks.pool.count(Owner.QUARANTINE) == 3
    blocks.heard.clear()
    send_frame(sock, {last_word: "a", "blocks": 3, "checksums": []})
    assert blocks.heard.wait_for(LoadReport).blocks_free == 8


class _Overwriting(ReceiverLog):
    """Gives the blocks away as soon as it may: whatever is written later shows in them."""

    storage: KvStorage

    def stopped(self, writer: str, attempt: str) -> None:
        self.storage.blocks[list(self.blocks[attempt])] = SENTINEL
        super().stopped(writer, HandoffId(attempt))


def test_no_byte_follows_stopped(bench: ShmBench) -> None:
    attempts = [f"a{number}" for number in range(30)]
    events = _Overwriting(blocks=dict.fromkeys(attempts, (3, 1, 2, 0)))
    log = SenderLog()
    events.storage, receiver = bench.listen(events, LARGE)
    sender = bench.connect(receiver, log, random_storage(LARGE, 4))
    for attempt in attempts:
        sender.begin(HandoffId(attempt))
        log.heard.wait_for(("accepted", attempt, 0))
        pushing = threading.Event()

        def hammer(attempt: str = attempt, pushing: threading.Event = pushing) -> None:
            while sender.push(HandoffId(attempt), range(4), 0):
                pushing.set()

        hammering = in_thread(hammer)
        assert pushing.wait(WAIT_S)
        receiver.stop(WRITER, HandoffId(attempt))
        events.heard.wait_for(("stopped", WRITER, attempt))
        join(hammering)
        assert bool((events.storage.blocks[:4] == SENTINEL).all())


def test_no_byte_follows_stopped_from_another_process(bench: ShmBench) -> None:
    attempts = [f"a{number}" for number in range(10)]
    events = _Overwriting(blocks=dict.fromkeys(attempts, (3, 1, 2, 0)))
    events.storage, receiver = bench.listen(events, LARGE)
    with SenderProcess(receiver.path, DECODE, WRITER) as sender:
        for attempt in attempts:
            sender.tell(f"begin {attempt}")
            sender.heard.wait_for(f"accepted {attempt} 0")
            sender.tell(f"hammer {attempt}")
            events.heard.wait_for(("progress", WRITER, attempt))
            receiver.stop(WRITER, HandoffId(attempt))
            events.heard.wait_for(("stopped", WRITER, attempt))
            sender.heard.wait_for(f"push refused {attempt}")
            assert bool((events.storage.blocks[:4] == SENTINEL).all())
