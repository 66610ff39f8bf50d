"""A decode worker, whole: engine, cache, custody of blocks, transports and session, wired together.

Plain Python: `decode_worker.actor` runs it under Ray, tests run it as it is.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

from decode_worker.custody import Custody
from decode_worker.desk import DecodeDesk, Errand, Evict, Message, Word
from decode_worker.hands import DecodeHands
from twinpool.cpus import machine_cpus, usable_cpus
from twinpool.engine.batch import DecodeRow
from twinpool.kv.pool import BlockPool
from twinpool.process_usage import cpu_seconds, resident_bytes
from twinpool.session.messages import (
    Admit,
    Audit,
    Command,
    Drop,
    Hello,
    JoinPair,
    LeavePair,
    MoveRow,
    Reserve,
    WriterGone,
)
from twinpool.session.server import SessionServer
from twinpool.transfer.connect import Connector, connect_pair, pair_connection
from twinpool.transfer.pairs import Pairs
from twinpool.transfer.port import HandoffReceiver
from twinpool.transfer.ray_receiver import RayReceiver
from twinpool.transfer.shm_receiver import ShmReceiver
from twinpool.types import AttemptId, HandoffEndpoint, HolderId, Pool
from twinpool.worker.courier import Courier
from twinpool.worker.engine import load_worker_engine
from twinpool.worker.inbox import Inbox
from twinpool.worker.loop import Loop, Stop
from twinpool.worker.pulse import REPORT_INTERVAL_S, Pulse
from twinpool.worker.spec import WorkerSpec
from twinpool.worker.threads import WorkerThreads

EXPIRY_INTERVAL_S = 0.25


class DecodeWorker:
    """Loaded by its constructor; `start` runs its threads and opens the session, `stop` ends all.

    connect: how a connection to another decode worker is opened, over which rows move; tests pass their own.
    """

    def __init__(self, spec: WorkerSpec, actor_name: str = "", connect: Connector = connect_pair) -> None:
        self._spec = spec
        self._pulse = Pulse()
        loaded = load_worker_engine(spec, self._pulse, shared=spec.handoff.transport != "ray")
        self._layout = loaded.layout
        self._facts = loaded.engine.kernel.facts
        self._cores = loaded.cores
        self._num_blocks = loaded.num_blocks
        self.session = SessionServer(self, spec.secret, spec.host)
        inbox: Inbox[Message | Stop] = Inbox()
        self._inbox = inbox
        self.custody = Custody(
            BlockPool(loaded.num_blocks),
            loaded.layout,
            spec.handoff,
            self._pulse,
            checksum=loaded.storage.block_checksum,
            enter=inbox.post,
            publish=self.session.publish,
        )
        self.storage = loaded.storage
        self.identity = loaded.identity
        self._descriptor = loaded.descriptor
        self._endpoint, self._receiver = self._listen(actor_name)
        self._ray_receiver = RayReceiver(self.identity, loaded.storage, self.custody, spec.handoff.renewal_s)
        self.custody.attach(self._ray_receiver)
        connection = pair_connection(connect, loaded.identity, loaded.storage, spec.handoff)
        self._pairs = Pairs(connection, inbox.post, self.session.publish)
        self.desk = DecodeDesk(
            loaded.layout.block_size,
            max_rows=spec.engine.max_batch_rows,
            eos_token_ids=loaded.eos_token_ids,
        )
        courier = Courier(self._pairs.senders, inbox.post)
        hands = DecodeHands(loaded.engine, courier, self.custody, inbox.post, self.session.publish)
        self._loop: Loop[Message, Word, Errand, AttemptId, DecodeRow] = Loop(
            self.desk, inbox, hands, self._pulse
        )
        self._threads = WorkerThreads(self.session.fail)
        self._threads.add("engine", self._loop.run)
        self._threads.add_periodic("expiry", EXPIRY_INTERVAL_S, self.custody.expire)
        self._threads.add_periodic("report", REPORT_INTERVAL_S, self._report)

    def start(self) -> int:
        """Serve; the session's port."""
        self._threads.start()
        return self.session.start()

    def stop(self) -> None:
        """End everything."""
        self._threads.leave()
        with ExitStack() as ends:  # all are done, whatever becomes of one; the last named first
            ends.callback(self._close_cache)
            if self._cores is not None:
                ends.callback(self._cores.close)
            if self._receiver is not None:
                ends.callback(self._receiver.close)
            ends.callback(self._ray_receiver.close)
            ends.callback(self._threads.join)
            ends.callback(self._inbox.post, Stop())
            ends.callback(self._pairs.close)
            ends.callback(self.session.stop)

    def hear_sender(self, word: str, *arguments: Any) -> Any:
        """A sender's word, where hand-offs come as actor calls."""
        return self._ray_receiver.hear(word, *arguments)

    # SessionHandler, on the session's thread.

    def hello(self) -> Hello:
        """Introduce this worker."""
        return Hello(
            pool=Pool.DECODE,
            incarnation=self._spec.incarnation,
            pid=os.getpid(),
            blocks_total=self._num_blocks,
            block_size=self._layout.block_size,
            kv_bytes=self._num_blocks * self._layout.block_bytes,
            endpoint=self._endpoint,
            cpus=machine_cpus(),
            cpus_usable=usable_cpus(),
            kernels=str(self._facts),
        )

    def command(self, command: Command) -> None:
        """What the router wants."""
        match command:
            # For one attempt: no two share a cache's blocks yet.
            case Reserve(attempts=(_,)):
                self.custody.reserve(command)
            case Admit():
                self.custody.admit(command)
            case Drop(holder):
                if row := self.custody.give_up(holder):
                    self._inbox.post(Evict(row))
            case Audit() | MoveRow():
                self._inbox.post(command)
            case JoinPair():
                self._pairs.join(command)
            case LeavePair(decode):
                self._pairs.leave(decode)
            case WriterGone(writer):
                self._ray_receiver.writer_gone(writer)
                self.custody.writer_gone(writer)
            case _:
                raise ValueError(f"not a decode worker's command: {type(command).__name__}")

    def work_lost(self, holders: Collection[HolderId]) -> None:
        """Free what the router had here. Pairs stay: the next router may use them."""
        for holder in holders:
            self.command(Drop(holder))

    def _listen(self, actor_name: str) -> tuple[HandoffEndpoint, HandoffReceiver | None]:
        if self._descriptor is None:
            return HandoffEndpoint(actor_name=actor_name), None
        receiver = ShmReceiver(
            self.identity, self._descriptor, self._num_blocks, self.custody, self.session.fail
        )
        self.custody.attach(receiver)
        return HandoffEndpoint(receiver.path, actor_name), receiver

    def _report(self) -> None:
        self._pulse.measured(cpu_seconds(), resident_bytes())
        self.custody.report_load()

    def _close_cache(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
