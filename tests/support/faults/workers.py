"""The real workers, watched at the points of `tests.support.faults.plans`: builders for the launcher.

They run in the workers' own processes, so what they put around methods there is seen by nobody else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.faults.plans import Point, Watch
from twinpool.config import HandoffConfig
from twinpool.kv.pool import Lease
from twinpool.serving.launcher import Builders
from twinpool.session.messages import Command, FirstToken, JoinPair, Prefill, Reserve, RowToken
from twinpool.transfer.handshake import Identity
from twinpool.transfer.port import HandoffSender, SenderEvents
from twinpool.types import HandoffId, Pool
from twinpool.worker.actor import Worker
from twinpool.worker.spec import WorkerSpec


def watched_builders(folder: Path) -> Builders:
    """Builders of workers that look up plans in a folder."""
    return {
        Pool.PREFILL: functools.partial(build_watched_prefill_worker, folder),
        Pool.DECODE: functools.partial(build_watched_decode_worker, folder),
    }


def build_watched_prefill_worker(folder: Path, spec: WorkerSpec) -> Worker:
    """A prefill worker."""
    from prefill_worker.worker import PrefillWorker
    from twinpool.kv.storage import copy_blocks
    from twinpool.transfer import shm_sender

    watch = Watch(folder)
    copies = _Copies(watch, copy_blocks)
    setattr(shm_sender, copy_blocks.__name__, copies.copy_in_halves)
    worker = PrefillWorker(spec, connect=_watched_connector(watch, copies))
    owner_of_block: dict[int, str] = {}

    def received(command: Command) -> None:
        if isinstance(command, Prefill):
            for holder in (command.handoff, *(attempt.id for attempt in command.attempts)):
                watch.expect(holder, len(command.prompt_ids) + len(command.output_ids))
            watch(Point.RECEIVED, command.handoff)

    def leased(lease: Lease | None, holder: str, *_: object) -> None:
        if lease is not None:
            owner_of_block.update(dict.fromkeys(lease.blocks, holder))
            watch(Point.PICKED, holder)

    def step(point: Point, chunks: Sequence[Any]) -> None:
        for chunk in chunks:
            watch(point, owner_of_block[chunk.block_table[0]])

    def said(_: None, word: object) -> None:
        if isinstance(word, FirstToken):
            watch(Point.FIRST_TOKEN, word.attempt)

    hands = worker._loop._hands
    _before(worker, "command", received)
    _after(worker.pool, "lease", leased)
    _before(hands, "compute", lambda chunks: step(Point.STEP_BEGUN, chunks))
    _after(hands, "compute", lambda _, chunks: step(Point.STEP_DONE, chunks))
    _after(hands, "say", said)
    return worker


def build_watched_decode_worker(folder: Path, spec: WorkerSpec) -> Worker:
    """A decode worker."""
    from decode_worker.actor import build_decode_worker
    from decode_worker.batch import Row
    from decode_worker.worker import DecodeWorker
    from twinpool.kv.blocks import reservation_tokens

    watch = Watch(folder)
    worker = build_decode_worker(spec)
    assert isinstance(worker, DecodeWorker)
    custody = worker.custody

    def reserving(command: Reserve) -> None:
        for holder in (command.handoff, *command.attempts):
            watch.expect(holder, command.num_tokens - reservation_tokens(0))

    def reserved(_: None, command: Reserve) -> None:
        if custody._held.stage(command.handoff) is not None:
            watch(Point.RESERVED, command.handoff)

    def entered(_: None, row: Row) -> None:
        watch(Point.ADMITTED, row.attempt)

    def stepped(step: int, tokens: tuple[RowToken, ...], step_s: float) -> None:
        for token in tokens:
            watch(Point.TOKEN, token.attempt)
            if token.finish_reason is not None:
                watch(Point.FINISHED, token.attempt)

    _before(custody, "reserve", reserving)
    _after(custody, "reserve", reserved)
    _before(custody, "begin", lambda writer, handoff: watch(Point.BEGIN, handoff))
    _before(custody, "written", lambda writer, handoff, *_: watch(Point.WRITTEN, handoff))
    _after(worker.desk._batch, "enter", entered)
    _before(custody, "report_step", stepped)
    _before(custody, "evict", lambda attempt, *_: watch(Point.EVICTED, attempt))
    _copy_in_halves(worker._ray_receiver, watch)
    return worker


class _Copies:
    """The `shm` sender's copies, each in two halves. handoff: whose blocks are copied now."""

    def __init__(self, watch: Watch, copy: Callable[..., None]) -> None:
        self.handoff = ""
        self._watch = watch
        self._copy = copy

    def copy_in_halves(self, src: Any, src_ids: Sequence[int], dst: Any, dst_ids: Sequence[int]) -> None:
        half = len(src_ids) // 2
        self._copy(src, src_ids[:half], dst, dst_ids[:half])
        self._watch(Point.COPYING, self.handoff)
        self._copy(src, src_ids[half:], dst, dst_ids[half:])


def _copy_in_halves(receiver: Any, watch: Watch) -> None:
    """The same of the `ray` receiver, which is the writer there."""
    copy = receiver._copy

    def copy_in_halves(arriving: Any, first: int, chunk: Any) -> None:
        half = len(chunk) // 2
        copy(arriving, first, chunk[:half])
        watch(Point.COPYING, arriving.handoff)
        copy(arriving, first + half, chunk[half:])

    receiver._copy = copy_in_halves


def _watched_connector(watch: Watch, copies: _Copies) -> Any:
    """Opens real pairs, and watches what the worker says to them."""
    from twinpool.transfer.connect import connect_pair

    def connect(
        command: JoinPair, identity: Identity, source: Any, config: HandoffConfig, events: SenderEvents
    ) -> _WatchedSender:
        return _WatchedSender(connect_pair(command, identity, source, config, events), watch, copies)

    return connect


class _WatchedSender:
    """A real sender behind it, for whatever is not watched here.

    Not methods put around the sender's own: they would make a circle with it, and so keep the memory that it
    maps after it is dropped.
    """

    def __init__(self, sender: HandoffSender, watch: Watch, copies: _Copies) -> None:
        self._sender = sender
        self._watch = watch
        self._copies = copies

    def begin(self, handoff: HandoffId) -> None:
        self._sender.begin(handoff)
        self._watch(Point.OFFERED, handoff)

    def push(self, handoff: HandoffId, source_blocks: Sequence[int], first: int) -> bool:
        self._copies.handoff = handoff
        self._watch(Point.PUSH, handoff)
        return self._sender.push(handoff, source_blocks, first)

    def written(self, handoff: HandoffId) -> bool:
        self._watch(Point.COPY_ENDED, handoff)
        return self._sender.written(handoff)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)


def _before(owner: object, name: str, seen: Callable[..., None]) -> None:
    """Have a method's arguments seen before it is carried out."""
    method = getattr(owner, name)

    def watched(*arguments: Any) -> Any:
        seen(*arguments)
        return method(*arguments)

    setattr(owner, name, watched)


def _after(owner: object, name: str, seen: Callable[..., None]) -> None:
    """Have a method's result and arguments seen after it was carried out."""
    method = getattr(owner, name)

    def watched(*arguments: Any) -> Any:
        result = method(*arguments)
        seen(result, *arguments)
        return result

    setattr(owner, name, watched)
