"""Length-prefixed JSON messages over a stream socket, with a limit on their size."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from typing import Any

MAX_FRAME_BYTES = 4 * 1024 * 1024
_LENGTH = struct.Struct("!I")


class FrameTooLong(ConnectionError):
    """The other side announced more than a message may hold."""


def bound_sends(sock: socket.socket, seconds: float) -> None:
    """Let every send fail with OSError after so long; receives may still wait without end."""
    whole = int(seconds)
    timeval = struct.pack("ll", whole, int((seconds - whole) * 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)


def send_frame(sock: socket.socket, message: dict[str, Any], descriptor: int | None = None) -> None:
    """Send one message, and a file descriptor with it. Raises OSError, TimeoutError included."""
    body = json.dumps(message, separators=(",", ":")).encode()
    frame = _LENGTH.pack(len(body)) + body
    if descriptor is not None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        sent = sock.sendmsg([frame], rights)
        frame = frame[sent:]
    sock.sendall(frame)


def receive_frame(sock: socket.socket) -> dict[str, Any] | None:
    """The next message; None at the end of the connection. Raises OSError or ValueError (not JSON)."""
    head = _receive_exactly(sock, _LENGTH.size)
    return None if head is None else _receive_body(sock, head)


def receive_frame_with_descriptor(sock: socket.socket) -> tuple[dict[str, Any] | None, int | None]:
    """The next message and the descriptor that came with it, which the caller now owns."""
    space = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
    head, rights, _, _ = sock.recvmsg(_LENGTH.size, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    try:
        rest = _receive_exactly(sock, _LENGTH.size - len(head)) if head else None
        message = None if rest is None else _receive_body(sock, head + rest)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return message, descriptors[0] if descriptors else None


def _receive_body(sock: socket.socket, head: bytes) -> dict[str, Any] | None:
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise FrameTooLong(f"a message of {length} bytes; the limit is {MAX_FRAME_BYTES}")
    body = _receive_exactly(sock, length)
    if body is None:
        return None
    try:
        message = json.loads(body)
    except RecursionError as error:
        raise ValueError("a message nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("a message that is not an object")
    return message


def _receive_exactly(sock: socket.socket, length: int) -> bytes | None:
    """Exactly this many bytes; None if the connection ends before."""
    data = bytearray()
    while len(data) < length:
        part = sock.recv(length - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
