"""Receivers and senders of the `shm` transport for one test, over real sockets and real shared memory."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable

from tests.support.workers.handoff_ends import SMALL, WAIT_S, DecodeBlocks, Heard, identity, random_storage
from twinpool.kv.layout import KvLayout
from twinpool.kv.storage import KvStorage
from twinpool.transfer.framing import receive_frame, send_frame
from twinpool.transfer.handshake import Identity
from twinpool.transfer.port import ReceiverEvents, SenderEvents
from twinpool.transfer.shared_memory import create_shared
from twinpool.transfer.shm_receiver import ShmReceiver
from twinpool.transfer.shm_sender import ShmSender, connect_shm

DECODE = f"decode-0-{secrets.token_hex(4)}"
"""Names a socket of the whole machine, where the same tests may run twice."""
WRITER = "prefill-0-bb"


class ShmBench:
    """Receivers and senders of one test; all of them end with it, and leave no thread behind.

    failed: what receivers have said of themselves.
    """

    def __init__(self) -> None:
        self.failed = Heard()
        self._endings: list[Callable[[], None]] = []
        self._others = set(threading.enumerate())

    def decode(
        self, layout: KvLayout = SMALL, num_blocks: int = 8, *, checksum: bool = False
    ) -> tuple[DecodeBlocks, ShmReceiver]:
        """A decode side with real custody, in shared memory."""
        descriptor, storage = self._shared(layout, num_blocks)
        blocks = DecodeBlocks(storage, checksum=checksum)
        receiver = self._receiver(layout, descriptor, num_blocks, blocks.custody)
        blocks.custody.attach(receiver)
        return blocks, receiver

    def listen(self, events: ReceiverEvents, layout: KvLayout = SMALL) -> tuple[KvStorage, ShmReceiver]:
        """A decode side that does what `events` says."""
        descriptor, storage = self._shared(layout, 8)
        return storage, self._receiver(layout, descriptor, 8, events)

    def connect(
        self,
        receiver: ShmReceiver,
        events: SenderEvents,
        source: KvStorage | None = None,
        *,
        own: Identity | None = None,
        decode: str = DECODE,
        checksum: bool = False,
    ) -> ShmSender:
        """A sender, by default of WRITER and with SMALL blocks."""
        source = source or random_storage(SMALL, 8)
        own = own or identity(WRITER, source.layout)
        sender = connect_shm(receiver.path, decode, own, source, events, checksum=checksum, timeout_s=WAIT_S)
        self._endings.append(sender.close)
        return sender

    def raw(self, receiver: ShmReceiver, *, writer: str = "", layout: KvLayout = SMALL) -> socket.socket:
        """A socket to a receiver; with a writer's name it has shaken hands."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._endings.append(sock.close)
        sock.settimeout(WAIT_S)
        sock.connect(receiver.path)
        if writer:
            send_frame(sock, identity(writer, layout).hello())
            answer = receive_frame(sock)
            assert answer is not None
            assert answer["incarnation"] == DECODE
        return sock

    def forget_last(self) -> None:
        """The newest end has been ended by the test."""
        self._endings.pop()

    def end(self) -> None:
        for ending in reversed(self._endings):
            ending()
        for thread in set(threading.enumerate()) - self._others:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def _receiver(
        self, layout: KvLayout, descriptor: int, num_blocks: int, events: ReceiverEvents
    ) -> ShmReceiver:
        own = identity(DECODE, layout)
        receiver = ShmReceiver(own, descriptor, num_blocks, events, self.failed.add)
        self._endings.append(receiver.close)
        return receiver

    def _shared(self, layout: KvLayout, num_blocks: int) -> tuple[int, KvStorage]:
        descriptor, mapping = create_shared(num_blocks * layout.block_bytes, "twinpool-test")
        self._endings.append(lambda: os.close(descriptor))
        return descriptor, KvStorage(layout, num_blocks, buffer=mapping)
