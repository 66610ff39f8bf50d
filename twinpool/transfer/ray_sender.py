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
import torch

from twinpool.kv.storage import KvStorage
from twinpool.transfer.handshake import Identity
from twinpool.transfer.port import HandoffRefused, SenderEvents
from twinpool.transfer.ray_receiver import STOPPED

log = logging.getLogger(__name__)
ANSWER_TIMEOUT_S = 30.0
"""A decode worker that answers no call for so long has lost the pair."""
CLOSE_TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Handoff:
    """One attempt. num_blocks: reserved for it; 0 until its `begin` is accepted."""

    num_blocks: int = 0
    num_pushes: int = 0
    checksums: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Word:
    """One call to make. chunk: blocks to put into the store and pass as the last argument."""

    name: str
    attempt: str
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
        self._handoffs: dict[str, _Handoff] = {}
        self._over = False
        self._words: queue.SimpleQueue[_Word | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[str, str, Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=run, name=f"handoff-to-{decode}", daemon=True)
            for run in (self._speak, self._collect)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, attempt: str) -> None:
        with self._lock:
            if self._over:
                return
            self._handoffs[attempt] = _Handoff()
        self._words.put(_Word("begin", attempt))

    def push(self, attempt: str, source_blocks: Sequence[int], first: int) -> bool:
        handoff = self._handoffs.get(attempt)
        if handoff is None:
            return False
        if first + len(source_blocks) > handoff.num_blocks:
            raise ValueError(f"attempt {attempt} reserved {handoff.num_blocks} blocks and has more")
        # Indexing copies: the blocks may be freed before the chunk has gone out.
        chunk = self._source.block_bytes_view()[torch.tensor(source_blocks)].numpy()
        if self._checksum:
            for index, block in enumerate(source_blocks, first):
                handoff.checksums[index] = self._source.block_checksum(block)
        handoff.num_pushes += 1
        self._words.put(_Word("push", attempt, (first,), chunk))
        return True

    def renew(self, attempt: str) -> None:
        if attempt in self._handoffs:
            self._words.put(_Word("renew", attempt))

    def written(self, attempt: str) -> bool:
        with self._lock:
            handoff = self._handoffs.pop(attempt, None)
        if handoff is None:
            return False
        checksums = [handoff.checksums[index] for index in sorted(handoff.checksums)]
        self._words.put(_Word("written", attempt, (handoff.num_pushes, checksums)))
        return True

    def stopped(self, attempt: str) -> None:
        with self._lock:
            handoff = self._handoffs.pop(attempt, None)
            # Before the answer to `begin` it might overtake it; then that answer's hearer says it.
            is_open = handoff is not None and handoff.num_blocks > 0
        if is_open:
            self._words.put(_Word("stopped", attempt))

    def close(self) -> None:
        self._end()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_TIMEOUT_S)

    def _end(self) -> bool:
        """Take no more words; False if that was so before."""
        with self._lock:
            first, self._over = not self._over, True
            self._handoffs.clear()
        self._words.put(None)
        return first

    def _break(self, error: Exception) -> None:
        if self._end():
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._events.pair_broken(self._decode, lines[-1])

    def _speak(self) -> None:
        try:
            while (word := self._words.get()) is not None:
                self._answers.put((word.name, word.attempt, self._call(word)))
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
            return self._actor.hear_sender.remote(word.name, self._pair, word.attempt, *word.arguments)
        stored = [ray.put(word.chunk)]
        return self._actor.take_chunk.remote(self._pair, word.attempt, *word.arguments, stored)

    def _collect(self) -> None:
        try:
            while (asked := self._answers.get()) is not None:
                word, attempt, reference = asked
                self._hear(word, attempt, ray.get(reference, timeout=ANSWER_TIMEOUT_S))
        except ray.exceptions.RayError as error:
            self._break(error)
        except Exception as error:
            log.exception("hand-off to %s", self._decode)
            self._break(error)

    def _hear(self, word: str, attempt: str, answer: Any) -> None:
        if word == "begin" and answer:
            self._begun(attempt, *answer)
        elif word == "begin" and self._forget(attempt):
            self._events.refused(attempt)
        elif word in ("push", "renew") and answer == STOPPED and self._forget(attempt):
            self._events.stop_requested(attempt)

    def _begun(self, attempt: str, num_blocks: int, num_shared: int) -> None:
        with self._lock:
            handoff = self._handoffs.get(attempt)
            if handoff is not None:
                handoff.num_blocks = num_blocks
        if handoff is not None:
            self._events.accepted(attempt, num_shared)
        else:
            self._words.put(_Word("stopped", attempt))

    def _forget(self, attempt: str) -> bool:
        with self._lock:
            return self._handoffs.pop(attempt, None) is not None


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
    ray.put(source.block_bytes_view()[:1].numpy())
    return RaySender(actor, answer["pair"], decode, source, events, checksum)
