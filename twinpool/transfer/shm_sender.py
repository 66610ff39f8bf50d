"""The sender of the `shm` transport: writes straight into the decode worker's reserved blocks.

The decode pool is mapped into this process; a UNIX socket carries the words (`twinpool.transfer.port`).
Every copy runs under its hand-off's lock and checks there that the hand-off has not ended, so `stopped`
waits for a copy in progress and for nothing else, and no byte follows it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from twinpool.kv.layout import KvLayout
from twinpool.kv.storage import KvStorage, copy_blocks
from twinpool.transfer.framing import (
    bound_sends,
    receive_frame,
    receive_frame_with_descriptor,
    send_frame,
)
from twinpool.transfer.handshake import Identity
from twinpool.transfer.port import HandoffRefused, SenderEvents
from twinpool.transfer.shared_memory import map_shared
from twinpool.types import HandoffId

log = logging.getLogger(__name__)
SEND_TIMEOUT_S = 2.0
"""A receiver that takes no message for so long is stuck: the pair breaks rather than hold the engine up."""


@dataclass(slots=True)
class _Sending:
    """One hand-off on this connection. ended: its last word is said; no copy may start."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    targets: tuple[int, ...] = ()
    num_pushed: int = 0
    checksums: dict[int, int] = field(default_factory=dict)
    ended: bool = False


class ShmSender:
    """One pair's sender; see `HandoffSender`. Made by `connect_shm`."""

    transport = "shm"

    def __init__(
        self,
        sock: socket.socket,
        decode: str,
        source: KvStorage,
        target: KvStorage,
        events: SenderEvents,
        checksum: bool,
    ) -> None:
        self._sock = sock
        self._decode = decode
        self._source = source
        self._target = target
        self._events = events
        self._checksum = checksum
        self._send_lock = threading.Lock()
        self._sending: dict[HandoffId, _Sending] = {}
        self._closed = False
        # Nothing may be said, and no copy may start, any more: set before the socket is closed.
        self._over = False
        self._reader = threading.Thread(target=self._read, name=f"handoff-to-{decode}", daemon=True)
        self._reader.start()

    def begin(self, handoff: HandoffId) -> None:
        self._sending[handoff] = _Sending()
        self._send({"begin": handoff})

    def push(self, handoff: HandoffId, source_blocks: Sequence[int], first: int) -> bool:
        sending = self._sending.get(handoff)
        if sending is None:
            return False
        with sending.lock:
            if sending.ended or self._over:
                return False
            targets = sending.targets[first : first + len(source_blocks)]
            if len(targets) < len(source_blocks):
                raise ValueError(f"hand-off {handoff} reserved {len(sending.targets)} blocks and has more")
            copy_blocks(self._source, source_blocks, self._target, targets)
            sending.num_pushed += len(source_blocks)
            if self._checksum:
                for index, block in enumerate(source_blocks, first):
                    sending.checksums[index] = self._source.block_checksum(block)
            return self._send({"progress": handoff})

    def renew(self, handoff: HandoffId) -> None:
        if handoff in self._sending:
            self._send({"progress": handoff})

    def written(self, handoff: HandoffId) -> bool:
        sending = self._sending.get(handoff)
        if sending is None:
            return False
        checksums = [sending.checksums[index] for index in sorted(sending.checksums)]
        last_word = {"written": handoff, "blocks": sending.num_pushed, "checksums": checksums}
        return self._end(handoff, sending, last_word)

    def stopped(self, handoff: HandoffId) -> None:
        sending = self._sending.get(handoff)
        if sending is not None:
            self._end(handoff, sending, {"stopped": handoff})

    def close(self) -> None:
        self._closed = True
        self._end_all()
        with self._send_lock, contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join(SEND_TIMEOUT_S)

    def _end(self, handoff: HandoffId, sending: _Sending, last_word: dict[str, Any]) -> bool:
        """Say a hand-off's last word; False if that was said before, or cannot be said any more."""
        with sending.lock:
            if sending.ended:
                return False
            sending.ended = True
            said = self._send(last_word)
        self._sending.pop(handoff, None)
        return said

    def _end_all(self) -> None:
        """Let no copy start any more, and wait for those in progress."""
        self._over = True
        for handoff, sending in list(self._sending.items()):
            with sending.lock:
                sending.ended = True
            self._sending.pop(handoff, None)

    def _send(self, message: dict[str, Any]) -> bool:
        """Whether the message went out. If not, the reader ends the connection and reports it."""
        with self._send_lock:
            if self._over:
                return False
            try:
                send_frame(self._sock, message)
            except OSError as error:
                log.warning("hand-off connection to %s: %s", self._decode, error)
                self._over = True
                # Wakes our reader and tells the receiver nothing: another hand-off's copy may be in progress,
                # and the receiver takes the connection's end as proof that there is none.
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RD)
                return False
        return True

    def _read(self) -> None:
        reason = "the decode worker closed the connection"
        try:
            while (message := receive_frame(self._sock)) is not None:
                self._hear(message)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"the connection failed: {error}"
        except Exception as error:
            log.exception("the hand-off connection to %s broke", self._decode)
            reason = f"internal error: {error!r}"
        finally:
            self._end_all()
            # Only now: the end of the connection tells the receiver that no byte follows. Under the lock, so
            # that no send meets a descriptor that is another file's by then.
            with self._send_lock:
                self._sock.close()
        if not self._closed:
            self._events.pair_broken(self._decode, reason)

    def _hear(self, message: dict[str, Any]) -> None:
        if "accepted" in message:
            handoff = HandoffId(str(message["accepted"]))
            sending = self._sending.get(handoff)
            if sending is not None:
                sending.targets = tuple(message["blocks"])
                self._events.accepted(handoff, int(message["num_shared"]))
        elif "refused" in message:
            handoff = HandoffId(str(message["refused"]))
            self._sending.pop(handoff, None)
            self._events.refused(handoff)
        elif "stop" in message:
            handoff = HandoffId(str(message["stop"]))
            sending = self._sending.get(handoff)
            if sending is not None and self._end(handoff, sending, {"stopped": handoff}):
                self._events.stop_requested(handoff)


def connect_shm(
    path: str,
    decode: str,
    identity: Identity,
    source: KvStorage,
    events: SenderEvents,
    *,
    checksum: bool,
    timeout_s: float,
) -> ShmSender:
    """Open, check and warm a pair's connection.

    Raises OSError where the socket cannot be reached (another host), HandoffRefused where the other side
    does not agree, ValueError where it does not speak this protocol.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
        with contextlib.suppress(BrokenPipeError):  # refused before it was read; the answer says why
            send_frame(sock, identity.hello())
        answer, descriptor = receive_frame_with_descriptor(sock)
        target = _map_pool(answer, descriptor, decode, source.layout)
        # Bounds the sends; the reader waits without end, as silence is no fault.
        sock.settimeout(None)
        bound_sends(sock, SEND_TIMEOUT_S)
        return ShmSender(sock, decode, source, target, events, checksum)
    except BaseException:
        sock.close()
        raise


def _map_pool(
    answer: dict[str, Any] | None, descriptor: int | None, decode: str, layout: KvLayout
) -> KvStorage:
    """The decode pool of whoever answered; the descriptor is closed in any case."""
    try:
        if answer is None:
            raise HandoffRefused("the decode worker closed the connection")
        if descriptor is None or "error" in answer:
            raise HandoffRefused(str(answer.get("error", "no shared memory came")))
        if answer.get("incarnation") != decode:
            raise HandoffRefused(f"incarnation {answer.get('incarnation')!r} answered for {decode!r}")
        num_blocks = int(answer["num_blocks"])
        mapping = map_shared(descriptor, num_blocks * layout.block_bytes)
        return KvStorage(layout, num_blocks, buffer=mapping)
    finally:
        if descriptor is not None:
            os.close(descriptor)
