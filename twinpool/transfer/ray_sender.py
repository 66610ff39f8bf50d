"""The sender of the `ray` transport: puts chunks into the object store and tells the decode actor.

The engine's thread only copies blocks out of the cache. One thread of the pair's own puts them into the store
and makes the calls, either of which may wait for Ray; another collects the answers. References travel only as
arguments of these calls, nested in a list: pickled by other means they would pin their objects for good.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import ray.exceptions

from twinpool.kv.storage import KvStorage
from twinpool.transfer.handshake import Identity
from twinpool.transfer.port import HandoffRefused, SenderEvents
from twinpool.transfer.ray_receiver import STOPPED
from twinpool.types import HandoffId

log = logging.getLogger(__name__)
ANSWER_TIMEOUT_S = 30.0
"""A decode worker that answers no call for so long has lost the pair."""
CLOSE_TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Sending:
    """One hand-off. num_blocks: reserved for it; 0 until its `begin` is accepted."""

    num_blocks: int = 0
    num_pushes: int = 0
    checksums: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Word:
    """One call to make. chunk: blocks to put into the store and pass as the last argument."""

    name: str
    handoff: HandoffId
    arguments: tuple[Any, ...] = ()
    chunk: np.ndarray[Any, Any] | None = None


class RaySender:
    """One pair's sender; see `HandoffSender`. Made by `connect_ray`.

    pair: the receiver's name for it.
    """

    transport = "ray"

    def __init__(
        self, actor: Any, pair: str, decode: str, source: KvStorage, events: SenderEvents, checksum: bool
    ) -> None:
        self._actor = actor
        self._pair = pair
        self._decode = decode
        self._source = source
        self._events = events
        self._checksum = checksum
        self._lock = threading.Lock()
        self._sending: dict[HandoffId, _Sending] = {}
        self._over = False
        self._words: queue.SimpleQueue[_Word | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[str, HandoffId, Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=run, name=f"handoff-to-{decode}", daemon=True)
            for run in (self._speak, self._collect)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, handoff: HandoffId) -> None:
        with self._lock:
            if self._over:
                return
            self._sending[handoff] = _Sending()
        self._words.put(_Word("begin", handoff))

    def push(self, handoff: HandoffId, source_blocks: Sequence[int], first: int) -> bool:
        sending = self._sending.get(handoff)
        if sending is None:
            return False
        if first + len(source_blocks) > sending.num_blocks:
            raise ValueError(f"hand-off {handoff} reserved {sending.num_blocks} blocks and has more")
        # Indexing copies: the blocks may be freed before the chunk has gone out.
        chunk = self._source.blocks[list(source_blocks)]
        if self._checksum:
            for index, block in enumerate(source_blocks, first):
                sending.checksums[index] = self._source.block_checksum(block)
        sending.num_pushes += 1
        self._words.put(_Word("push", handoff, (first,), chunk))
        return True

    def renew(self, handoff: HandoffId) -> None:
        if handoff in self._sending:
            self._words.put(_Word("renew", handoff))

    def written(self, handoff: HandoffId) -> bool:
        with self._lock:
            sending = self._sending.pop(handoff, None)
        if sending is None:
            return False
        checksums = [sending.checksums[index] for index in sorted(sending.checksums)]
        self._words.put(_Word("written", handoff, (sending.num_pushes, checksums)))
        return True

    def stopped(self, handoff: HandoffId) -> None:
        with self._lock:
            sending = self._sending.pop(handoff, None)
            # Before the answer to `begin` it might overtake it; then that answer's hearer says it.
            is_open = sending is not None and sending.num_blocks > 0
        if is_open:
            self._words.put(_Word("stopped", handoff))

    def close(self) -> None:
        self._end()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_TIMEOUT_S)

    def _end(self) -> bool:
        """Take no more words; False if that was so before."""
        with self._lock:
            first, self._over = not self._over, True
            self._sending.clear()
        self._words.put(None)
        return first

    def _break(self, error: Exception) -> None:
        if self._end():
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._events.pair_broken(self._decode, lines[-1])

    def _speak(self) -> None:
        try:
            while (word := self._words.get()) is not None:
                self._answers.put((word.name, word.handoff, self._call(word)))
        except Exception as error:
            log.exception("hand-off to %s", self._decode)
            self._break(error)
        finally:
            # An actor that is gone, or a Ray that is shut down, needs no farewell.
            with contextlib.suppress(Exception):
                self._actor.hear_sender.remote("leave", self._pair)
            self._answers.put(None)

    def _call(self, word: _Word) -> Any:
        """Make a call; the reference to its answer."""
        if word.chunk is None:
            return self._actor.hear_sender.remote(word.name, self._pair, word.handoff, *word.arguments)
        stored = [ray.put(word.chunk)]
        return self._actor.take_chunk.remote(self._pair, word.handoff, *word.arguments, stored)

    def _collect(self) -> None:
        try:
            while (asked := self._answers.get()) is not None:
                word, handoff, reference = asked
                self._hear(word, handoff, ray.get(reference, timeout=ANSWER_TIMEOUT_S))
        except ray.exceptions.RayError as error:
            self._break(error)
        except Exception as error:
            log.exception("hand-off to %s", self._decode)
            self._break(error)

    def _hear(self, word: str, handoff: HandoffId, answer: Any) -> None:
        if word == "begin" and answer:
            self._begun(handoff, *answer)
        elif word == "begin" and self._forget(handoff):
            self._events.refused(handoff)
        elif word in ("push", "renew") and answer == STOPPED and self._forget(handoff):
            self._events.stop_requested(handoff)

    def _begun(self, handoff: HandoffId, num_blocks: int, num_shared: int) -> None:
        with self._lock:
            sending = self._sending.get(handoff)
            if sending is not None:
                sending.num_blocks = num_blocks
        if sending is not None:
            self._events.accepted(handoff, num_shared)
        else:
            self._words.put(_Word("stopped", handoff))

    def _forget(self, handoff: HandoffId) -> bool:
        with self._lock:
            return self._sending.pop(handoff, None) is not None


def connect_ray(
    name: str,
    decode: str,
    identity: Identity,
    source: KvStorage,
    events: SenderEvents,
    *,
    checksum: bool,
    timeout_s: float,
) -> RaySender:
    """Find the decode worker's actor by name, shake hands, and warm the way to the store with one block.

    Raises HandoffRefused where the other side does not agree or is not there.
    """
    try:
        actor: Any = ray.get_actor(name)
        asked: ray.ObjectRef[dict[str, str]] = actor.hear_sender.remote("join", identity.hello())
        answer = ray.get(asked, timeout=timeout_s)
    except (ValueError, ray.exceptions.RayError) as error:
        raise HandoffRefused(f"no actor {name}: {error}") from error
    if "error" in answer:
        raise HandoffRefused(answer["error"])
    if answer["incarnation"] != decode:
        raise HandoffRefused(f"incarnation {answer['incarnation']!r} answered for {decode!r}")
    ray.put(source.blocks[:1])
    return RaySender(actor, answer["pair"], decode, source, events, checksum)
