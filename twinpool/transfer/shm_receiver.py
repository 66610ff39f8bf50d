"""The receiver of the `shm` transport: shares the decode pool with senders on the same host.

It listens on a UNIX socket in the abstract namespace, whose name goes with the process. A connection is
read by a thread of its own until its end, which is the sender's and never ours: only the sender's closing
proves that it has stopped writing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from twinpool.transfer.framing import bound_sends, receive_frame, send_frame
from twinpool.transfer.handshake import Identity
from twinpool.transfer.port import HandoffRefused, ReceiverEvents
from twinpool.types import HandoffId
from twinpool.worker.threads import WorkerThreads

log = logging.getLogger(__name__)
HANDSHAKE_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 0.1
"""`stop` is sent under the lock of all reservations: a sender whose socket is full is hung up on instead."""
CLOSE_TIMEOUT_S = 2.0
ACCEPT_RETRY_S = 0.1
BACKLOG = 64


class ShmReceiver:
    """The decode side of all `shm` pairs; see `HandoffReceiver`.

    descriptor: the pool's shared memory; the caller owns it, and may close it once `close` has returned.
    failed: told, in words, if nobody can join any more.
    """

    def __init__(
        self,
        identity: Identity,
        descriptor: int,
        num_blocks: int,
        events: ReceiverEvents,
        failed: Callable[[str], None],
    ) -> None:
        self.path = f"\0twinpool-{identity.incarnation}"
        self._identity = identity
        self._descriptor = descriptor
        self._num_blocks = num_blocks
        self._events = events
        self._closing = threading.Event()
        # Under the lock: all open connections, and those that have joined, by their writer.
        self._lock = threading.Lock()
        self._open: set[_Connection] = set()
        self._joined: dict[str, _Connection] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(BACKLOG)
        self._acceptor = WorkerThreads(failed)
        self._acceptor.add("handoff-accept", self._accept)
        self._acceptor.start()

    def stop(self, writer: str, handoff: HandoffId) -> None:
        with self._lock:
            connection = self._joined.get(writer)
        if connection is not None:
            connection.send({"stop": handoff})

    def close(self) -> None:
        """End all connections; returns once they have ended, or after CLOSE_TIMEOUT_S."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            connections = list(self._open)
            joined = set(self._joined.values())
        for connection in connections:
            if connection in joined:
                connection.hang_up()
            else:
                connection.abandon()
        for connection in connections:
            connection.ended.wait(max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                # Too many open files, say: it passes. When closing, the loop ends.
                if not self._closing.wait(ACCEPT_RETRY_S):
                    log.warning("hand-off socket: %s", error)
                continue
            connection = _Connection(sock)
            with self._lock:
                self._open.add(connection)
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="handoff-from", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                # Too many threads: it passes, too, and the sender dials again.
                log.warning("hand-off connection refused: %s", error)
                self._forget(connection)

    def _serve(self, connection: _Connection) -> None:
        try:
            writer = self._join(connection)
            if writer is not None:
                self._listen_to(writer, connection)
        finally:
            self._forget(connection)

    def _forget(self, connection: _Connection) -> None:
        connection.close()
        with self._lock:
            self._open.discard(connection)
        connection.ended.set()

    def _join(self, connection: _Connection) -> str | None:
        """Shake hands; the writer's incarnation, or None if it was refused."""
        sock = connection.sock
        try:
            sock.settimeout(HANDSHAKE_TIMEOUT_S)
            _require_same_user(sock)
            hello = receive_frame(sock)
            if hello is None:
                return None
            writer = self._identity.check(hello)
            # Before it may be told to stop: reads wait without end from here, and sends no longer than this.
            sock.settimeout(None)
            bound_sends(sock, SEND_TIMEOUT_S)
            descriptor = self._register(writer, connection)
        except HandoffRefused as refusal:
            with contextlib.suppress(OSError):
                send_frame(sock, {"error": str(refusal)})
            return None
        except (OSError, ValueError) as error:
            log.warning("hand-off handshake: %s", error)
            return None
        answer = {"incarnation": self._identity.incarnation, "num_blocks": self._num_blocks}
        try:
            with contextlib.suppress(OSError):  # its reader sees the end
                send_frame(sock, answer, descriptor)
        finally:
            os.close(descriptor)
        return writer

    def _register(self, writer: str, connection: _Connection) -> int:
        """Count the writer as joined; a descriptor of the pool for it, owned by the caller."""
        with self._lock:
            if self._closing.is_set():
                raise HandoffRefused("the decode worker is leaving")
            if writer in self._joined:
                raise HandoffRefused("this pair is joined already")
            # A copy, so that our owner may close its own while this one is on its way.
            descriptor = os.dup(self._descriptor)
            self._joined[writer] = connection
        return descriptor

    def _listen_to(self, writer: str, connection: _Connection) -> None:
        try:
            while (message := receive_frame(connection.sock)) is not None:
                self._hear(writer, connection, message)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("hand-off connection from %s: %s", writer, error)
        finally:
            connection.wait_for_end()
            self._events.connection_ended(writer)
            # Only now: what the writer begins on its next connection is not to end with this one.
            with self._lock:
                del self._joined[writer]

    def _hear(self, writer: str, connection: _Connection, message: dict[str, Any]) -> None:
        if "begin" in message:
            handoff = HandoffId(str(message["begin"]))
            opened = self._events.begin(writer, handoff)
            if opened is None:
                connection.send({"refused": handoff})
            else:
                accepted = {"accepted": handoff, "blocks": opened.blocks, "num_shared": opened.num_shared}
                connection.send(accepted)
        elif "progress" in message:
            self._events.progress(writer, HandoffId(str(message["progress"])))
        elif "written" in message:
            handoff, checksums = HandoffId(str(message["written"])), message["checksums"]
            self._events.written(writer, handoff, int(message["blocks"]), checksums)
        elif "stopped" in message:
            self._events.stopped(writer, HandoffId(str(message["stopped"])))


class _Connection:
    """One sender's socket: read by its own thread, written by whoever has something to say.

    ended: set once its socket is closed and its end was reported.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._hung_up = False

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, within SEND_TIMEOUT_S; a sender that takes none is hung up on."""
        with self._lock:
            if self._hung_up:
                return
            try:
                send_frame(self.sock, message)
            except OSError as error:
                log.warning("a hand-off sender takes no messages: %s", error)
                self._shut(socket.SHUT_WR)

    def hang_up(self) -> None:
        """Ask the sender to end the connection; it does so once its copies have stopped."""
        with self._lock:
            self._shut(socket.SHUT_WR)

    def abandon(self) -> None:
        """End a connection that has not joined, and so was given no memory."""
        with self._lock:
            self._shut(socket.SHUT_RDWR)

    def wait_for_end(self) -> None:
        """Read on until the sender closes: bounded by the sender's life alone, as the protocol demands."""
        self.hang_up()
        with contextlib.suppress(OSError):
            while self.sock.recv(65536):
                pass

    def close(self) -> None:
        """Let go of the socket."""
        with self._lock:
            self._hung_up = True
            self.sock.close()

    def _shut(self, how: int) -> None:
        self._hung_up = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(how)


def _require_same_user(sock: socket.socket) -> None:
    """The abstract namespace has no file permissions, so ask the kernel who is calling."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user != os.getuid():
        raise HandoffRefused("another user's process")
