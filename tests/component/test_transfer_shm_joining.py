"""Who may join an `shm` receiver, what nobody should send it, and what is left behind."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers.handoff_ends import (
    KERNEL,
    SMALL,
    WAIT_S,
    ReceiverLog,
    SenderLog,
    identity,
    random_storage,
)
from tests.support.workers.shm_bench import DECODE, WRITER, ShmBench
from twinpool.engine.fingerprint import layout_fingerprint
from twinpool.transfer import shm_receiver
from twinpool.transfer.framing import (
    MAX_FRAME_BYTES,
    receive_frame,
    receive_frame_with_descriptor,
    send_frame,
)
from twinpool.transfer.port import HandoffRefused
from twinpool.transfer.shared_memory import create_shared
from twinpool.transfer.shm_sender import ShmSender
from twinpool.types import HandoffId


class _SlowEnd(ReceiverLog):
    """Takes its time to hear that a connection has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.telling = threading.Event()
        self.told = threading.Event()

    def connection_ended(self, writer: str) -> None:
        self.telling.set()
        assert self.told.wait(WAIT_S)


def _until(join_pair: Callable[[], object]) -> None:
    """Try again until it is not refused."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            join_pair()
        except HandoffRefused:
            assert time.monotonic() < deadline
        else:
            return


# Who may join.


def test_wrong_secret_is_refused(bench: ShmBench) -> None:
    _, receiver = bench.listen(ReceiverLog())
    with pytest.raises(HandoffRefused, match="wrong cluster secret"):
        bench.connect(receiver, SenderLog(), own=identity(WRITER, secret="guessed"))


def test_another_users_process_is_refused(bench: ShmBench, monkeypatch: pytest.MonkeyPatch) -> None:
    _, receiver = bench.listen(ReceiverLog())
    monkeypatch.setattr(os, "getuid", lambda: -1)
    with pytest.raises(HandoffRefused, match="another user's process"):
        bench.connect(receiver, SenderLog())


@pytest.mark.parametrize("field", layout_fingerprint(SMALL, KERNEL, weights_digest="digest", rope_theta=1e4))
def test_mismatch_is_refused_naming_the_field(bench: ShmBench, field: str) -> None:
    _, receiver = bench.listen(ReceiverLog())
    with pytest.raises(HandoffRefused, match=f"{field} differs: 'other' at the sender"):
        bench.connect(receiver, SenderLog(), own=identity(WRITER, fields={field: "other"}))


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        ({"protocol": 1}, "protocol 1 at the sender"),
        ({"protocol": [98, 99]}, "protocol [98, 99] at the sender, 1 at the receiver"),
        ({"fingerprint": None}, "no fingerprint"),
        ({"fingerprint": {}}, "weights_digest differs"),
    ],
)
def test_other_protocols_are_refused(bench: ShmBench, hello: dict[str, object], why: str) -> None:
    _, receiver = bench.listen(ReceiverLog())
    sock = bench.raw(receiver)
    send_frame(sock, identity(WRITER).hello() | hello)
    answer = receive_frame(sock)
    assert answer is not None
    assert why in answer["error"]
    assert receive_frame(sock) is None


def test_another_life_of_the_decode_worker_is_refused(bench: ShmBench) -> None:
    events = ReceiverLog()
    _, receiver = bench.listen(events)
    with pytest.raises(HandoffRefused, match=f"{DECODE!r} answered for 'decode-0-old'"):
        bench.connect(receiver, SenderLog(), decode="decode-0-old")
    events.heard.wait_for(("ended", WRITER))


def test_second_connection_of_a_writer_is_refused_and_the_first_lives_on(bench: ShmBench) -> None:
    log, events = SenderLog(), ReceiverLog(blocks={"a": (0,)})
    _, receiver = bench.listen(events)
    sender = bench.connect(receiver, log)
    with pytest.raises(HandoffRefused, match="joined already"):
        bench.connect(receiver, SenderLog())
    sender.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))


def test_writer_joins_anew_only_after_the_end_of_its_connection_is_told(bench: ShmBench) -> None:
    events = _SlowEnd()
    _, receiver = bench.listen(events)
    bench.connect(receiver, SenderLog()).close()
    assert events.telling.wait(WAIT_S)
    with pytest.raises(HandoffRefused, match="joined already"):
        bench.connect(receiver, SenderLog())
    events.told.set()
    _until(lambda: bench.connect(receiver, SenderLog()))


# Messages nobody should send.


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("!I", MAX_FRAME_BYTES + 1),
        struct.pack("!I", 5) + b"\xff\xfe{}!",
        struct.pack("!I", 4) + b"[42]",
        struct.pack("!I", 200_000) + b"[" * 200_000,
        struct.pack("!I", 2) + b"{}" + struct.pack("!I", 0xFFFFFFFF),
        struct.pack("!I", 15) + b'{"written":"a"}',
        struct.pack("!I", 44) + b'{"written":"a","blocks":null,"checksums":[]}',
    ],
    ids=["too long", "not text", "not an object", "deep", "too long second", "without a field", "wrong type"],
)
def test_garbage_ends_that_connection_alone(bench: ShmBench, sent: bytes, joined: bool) -> None:
    log, events = SenderLog(), ReceiverLog(blocks={"a": (0,)})
    _, receiver = bench.listen(events)
    good = bench.connect(receiver, log)
    bad = bench.raw(receiver, writer="bad" if joined else "")
    bad.sendall(sent)
    with suppress(ConnectionResetError):  # the end, where not all was read
        while bad.recv(65536):
            pass
    bad.close()
    if joined:
        events.heard.wait_for(("ended", "bad"))
    good.begin(HandoffId("a"))
    log.heard.wait_for(("accepted", "a", 0))


def test_silent_stranger_is_dropped_and_holds_nobody_up(
    bench: ShmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_receiver, "HANDSHAKE_TIMEOUT_S", 2.0)
    _, receiver = bench.listen(ReceiverLog())
    silent = bench.raw(receiver)
    bench.connect(receiver, SenderLog())
    assert silent.recv(1) == b""


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\0\0\0\x02[]", b'\0\0\0\x10{"accepted":"a"}'])
def test_garbage_from_the_receiver_breaks_the_pair(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        log = SenderLog()
        sender = ShmSender(ours, DECODE, random_storage(SMALL, 1), random_storage(SMALL, 1), log, False)
        sender.begin(HandoffId("a"))
        theirs.sendall(sent)
        assert "failed" in log.wait_until_broken()
        assert receive_frame(theirs) == {"begin": "a"}
        assert receive_frame(theirs) is None
        sender.close()


def test_accept_survives_an_error_that_passes(bench: ShmBench, monkeypatch: pytest.MonkeyPatch) -> None:
    accept, failures = socket.socket.accept, iter([True])

    def fails_once(sock: socket.socket) -> Any:
        if next(failures, False):
            raise OSError("too many open files")
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", fails_once)
    _, receiver = bench.listen(ReceiverLog())
    bench.connect(receiver, SenderLog())


def test_connection_for_which_there_is_no_thread_is_refused_alone(
    bench: ShmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = threading.Thread.start, iter([True])

    def fails_once(thread: threading.Thread) -> None:
        if thread.name == "handoff-from" and next(failures, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails_once)
    _, receiver = bench.listen(ReceiverLog())
    with pytest.raises((HandoffRefused, OSError)):
        bench.connect(receiver, SenderLog())
    bench.connect(receiver, SenderLog())


def test_receiver_that_nobody_can_join_any_more_says_so(
    bench: ShmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(sock: socket.socket) -> Any:
        raise ValueError("as told")

    monkeypatch.setattr(socket.socket, "accept", fail)
    bench.listen(ReceiverLog())
    bench.failed.wait_for("its handoff-accept thread failed")


# What is left behind.


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _pools_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:twinpool-test")


def test_joins_leave_no_descriptor_mapping_or_thread_behind(bench: ShmBench) -> None:
    _, receiver = bench.listen(ReceiverLog())

    def join_and_leave(number: int) -> None:
        writer = identity(f"writer-{number}")
        with pytest.raises(HandoffRefused):
            bench.connect(receiver, SenderLog(), own=writer, decode="another")
        with pytest.raises(HandoffRefused):
            bench.connect(receiver, SenderLog(), own=identity("writer", secret="guessed"))
        _settle()
        bench.connect(receiver, SenderLog(), own=writer).close()
        bench.forget_last()

    join_and_leave(0)
    before, num_joins = _left(), 50
    for number in range(num_joins):
        join_and_leave(number)
    # Other threads of this process may have opened a few meanwhile, and the collector may have come by.
    assert all(now < earlier + num_joins / 2 for now, earlier in zip(_left(), before, strict=True))


def _settle() -> None:
    """Wait until the receiver's threads have let go of the connections that have ended."""
    deadline = time.monotonic() + WAIT_S
    while any(thread.name == "handoff-from" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _left() -> tuple[int, int, int]:
    """Open descriptors, mappings of pools, threads."""
    _settle()
    num_mapped = Path("/proc/self/maps").read_text().count("memfd:twinpool-test")
    return _num_descriptors(), num_mapped, threading.active_count()


def _num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\0\0\0\x01!", b"\0\0\0\x02{", b"\0"])
def test_descriptor_that_came_with_garbage_is_not_kept(sent: bytes) -> None:
    descriptor, mapping = create_shared(4096, "twinpool-test")
    ours, theirs = socket.socketpair()
    with ours, theirs, mapping:
        before = _num_descriptors()
        socket.send_fds(theirs, [sent], [descriptor])
        theirs.shutdown(socket.SHUT_WR)
        try:
            message, received = receive_frame_with_descriptor(ours)
        except (OSError, ValueError):
            pass
        else:
            assert message is None
            if received is not None:
                os.close(received)
        assert _num_descriptors() == before
    os.close(descriptor)
