"""The receiver of the `ray` transport: copies chunks out of the object store into its own blocks.

Senders speak through actor calls, which may overtake one another: every push is counted, and `written` says
how many there were. The receiver is the writer here, so revoked blocks are free as soon as its own copies
into them have ended, and late chunks find no reservation and are dropped.

No connection's end tells a sender that its pair is over here. So a word over a pair that is not joined is an
error, which breaks the pair at the sender's end, too.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from twinpool.kv.storage import KvStorage
from twinpool.transfer.handshake import Identity
from twinpool.transfer.port import HandoffRefused, ReceiverEvents
from twinpool.types import HandoffId

STOPPED = "stopped"

Chunk = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
"""Whole blocks, `[num_blocks, block_bytes]`."""


@dataclass(slots=True, eq=False)
class _Arriving:
    """One hand-off. last_word: pushes to expect, and checksums, once `written` came."""

    writer: str
    handoff: HandoffId
    blocks: tuple[int, ...] = ()
    num_copying: int = 0
    num_copied: int = 0
    num_blocks: int = 0
    last_word: tuple[int, list[int]] | None = None
    stopped: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing more will be copied: given up, or all there."""
        if self.num_copying:
            return False
        return self.stopped or (self.last_word is not None and self.num_copied >= self.last_word[0])


class RayReceiver:
    """The decode side of all `ray` pairs; see `HandoffReceiver`. Words come from several threads at once.

    fetch_timeout_s: how long a chunk may take to come; its sender's node may be gone, and others wait behind.
    The lock is held neither while copying nor while the decode worker is told: that one calls `stop` under a
    lock of its own.
    """

    def __init__(
        self, identity: Identity, storage: KvStorage, events: ReceiverEvents, fetch_timeout_s: float
    ) -> None:
        self._fetch_timeout_s = fetch_timeout_s
        self._identity = identity
        self._events = events
        self._bytes: Chunk = storage.blocks
        self._lock = threading.Lock()
        self._writers: dict[str, str] = {}
        self._arriving: dict[tuple[str, HandoffId], _Arriving] = {}

    def stop(self, writer: str, handoff: HandoffId) -> None:
        """No message is needed: the hand-off's next push or renewal is told."""
        self._stopped(writer, handoff)

    def close(self) -> None:
        with self._lock:
            self._writers.clear()
            left = list(self._arriving)
        for writer, handoff in left:
            self._stopped(writer, handoff)

    def writer_gone(self, writer: str) -> None:
        """A sender's process is gone: no chunk follows, and there is no connection whose end says so."""
        with self._lock:
            pairs = [pair for pair, owner in self._writers.items() if owner == writer]
        for pair in pairs:
            self._leave(pair)

    def hear(self, word: str, *arguments: Any) -> Any:
        """One word of a sender; what it returns is the answer.

        join(hello) answers the name of the new pair, under which that sender says all else. Raises
        HandoffRefused where no such pair is joined, or not any more.
        """
        if word == "join":
            return self._join(*arguments)
        pair, *rest = arguments
        if word == "leave":
            return self._leave(pair)
        with self._lock:
            writer = self._writer(pair)
        match word:
            case "begin":
                return self._begin(pair, *rest)
            case "push":
                return self._push(writer, *rest)
            case "renew":
                return self._renew(writer, *rest)
            case "written":
                return self._written(writer, *rest)
            case "stopped":
                return self._stopped(writer, *rest)
            case _:
                raise ValueError(f"unknown word {word!r}")

    def _join(self, hello: dict[str, Any]) -> dict[str, str]:
        try:
            writer = self._identity.check(hello)
        except HandoffRefused as refusal:
            return {"error": str(refusal)}
        # A sender that joins anew has given its older pair up, and its `leave` may be late.
        self.writer_gone(writer)
        pair = secrets.token_hex(8)
        with self._lock:
            self._writers[pair] = writer
        return {"incarnation": self._identity.incarnation, "pair": pair}

    def _leave(self, pair: str) -> None:
        with self._lock:
            writer = self._writers.pop(pair, None)
            left = [key for key in self._arriving if key[0] == writer]
        for key in left:
            self._stopped(*key)

    def _writer(self, pair: str) -> str:
        """With the lock: whose pair it is."""
        if pair not in self._writers:
            raise HandoffRefused("the decode worker does not know this pair")
        return self._writers[pair]

    def _begin(self, pair: str, handoff: HandoffId) -> tuple[int, int] | None:
        """How many blocks to send, and how many shared ones to leave out before them; None refuses."""
        with self._lock:
            # Looked up under this same lock: what begins here, the pair's end finds, and ends.
            writer = self._writer(pair)
            if (writer, handoff) in self._arriving:
                return None
            arriving = _Arriving(writer, handoff)
            # There before the reservation opens: it may be revoked as soon as that.
            self._arriving[writer, handoff] = arriving
        opened = self._events.begin(writer, handoff)
        if opened is None:
            with self._lock:
                self._arriving.pop((writer, handoff), None)
            return None
        with self._lock:
            arriving.blocks = opened.blocks
            given_up = self._arriving.get((writer, handoff)) is not arriving
        if given_up:
            self._events.stopped(writer, handoff)
            return None
        return len(opened.blocks), opened.num_shared

    def _push(self, writer: str, handoff: HandoffId, first: int, references: list[Any]) -> str:
        """Copy one chunk; references holds one object, nested so that Ray passes it unread."""
        if not self._is_open(writer, handoff):
            return STOPPED
        chunk: Chunk = ray.get(references[0], timeout=self._fetch_timeout_s)
        with self._lock:
            arriving = self._arriving.get((writer, handoff))
            if arriving is None or arriving.stopped:
                return STOPPED
            arriving.num_copying += 1
        whole = False
        try:
            self._copy(arriving, first, chunk)
            self._events.progress(writer, handoff)
            whole = True
        finally:
            with self._lock:
                arriving.num_copying -= 1
                if whole:
                    arriving.num_copied += 1
                    arriving.num_blocks += len(chunk)
                ended = self._take_if_ended(arriving)
            self._report(arriving, ended)
        return ""

    def _renew(self, writer: str, handoff: HandoffId) -> str:
        if not self._is_open(writer, handoff):
            return STOPPED
        self._events.progress(writer, handoff)
        return ""

    def _is_open(self, writer: str, handoff: HandoffId) -> bool:
        with self._lock:
            arriving = self._arriving.get((writer, handoff))
            return arriving is not None and not arriving.stopped

    def _copy(self, arriving: _Arriving, first: int, chunk: Chunk) -> None:
        targets = arriving.blocks[first : first + len(chunk)]
        if len(targets) < len(chunk):
            raise ValueError(
                f"hand-off {arriving.handoff} reserved {len(arriving.blocks)} blocks and has more"
            )
        for target, block in zip(targets, chunk, strict=True):
            self._bytes[target] = block

    def _written(self, writer: str, handoff: HandoffId, num_pushes: int, checksums: list[int]) -> None:
        with self._lock:
            arriving = self._arriving.get((writer, handoff))
            if arriving is None:
                return
            arriving.last_word = (num_pushes, checksums)
            ended = self._take_if_ended(arriving)
        self._report(arriving, ended)

    def _stopped(self, writer: str, handoff: HandoffId) -> None:
        """Let no further copy start; the last one in progress, if any, reports the end."""
        with self._lock:
            arriving = self._arriving.get((writer, handoff))
            if arriving is None:
                return
            arriving.stopped = True
            ended = self._take_if_ended(arriving)
        self._report(arriving, ended)

    def _take_if_ended(self, arriving: _Arriving) -> bool:
        """With the lock: forget a hand-off that has ended; True for the one caller that is to report it."""
        if not arriving.ended or self._arriving.get((arriving.writer, arriving.handoff)) is not arriving:
            return False
        del self._arriving[arriving.writer, arriving.handoff]
        return True

    def _report(self, arriving: _Arriving, ended: bool) -> None:
        if not ended:
            return
        if arriving.stopped or arriving.last_word is None:
            self._events.stopped(arriving.writer, arriving.handoff)
            return
        _, checksums = arriving.last_word
        try:
            self._events.written(arriving.writer, arriving.handoff, arriving.num_blocks, checksums)
        except Exception:
            # Forgotten here already: no later end of the pair would free its blocks.
            self._events.stopped(arriving.writer, arriving.handoff)
            raise
