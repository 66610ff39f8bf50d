"""A prefill worker, whole: engine, cache, pairs and session, wired together.

Plain Python: `prefill_worker.actor` runs it under Ray, tests run it as it is.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import ExitStack

from prefill_worker.desk import Message, PrefillDesk, PrefillLimits, Word
from prefill_worker.hands import PrefillHands
from twinpool.cpus import machine_cpus, usable_cpus
from twinpool.engine.batch import PrefillChunk
from twinpool.kv.pool import BlockPool
from twinpool.process_usage import cpu_seconds, resident_bytes
from twinpool.session.messages import Audit, CancelPrefill, Command, Hello, JoinPair, LeavePair, Prefill
from twinpool.session.server import SessionServer
from twinpool.transfer.connect import Connector, connect_pair, pair_connection
from twinpool.transfer.pairs import Pairs
from twinpool.types import HandoffId, HolderId, Pool
from twinpool.worker.courier import Courier
from twinpool.worker.engine import load_worker_engine
from twinpool.worker.inbox import Inbox
from twinpool.worker.loop import Loop, Stop
from twinpool.worker.pulse import REPORT_INTERVAL_S, Pulse
from twinpool.worker.spec import WorkerSpec
from twinpool.worker.threads import WorkerThreads
from twinpool.worker.turn import Copy


class PrefillWorker:
    """Loaded by its constructor; `start` runs its threads and opens the session, `stop` ends all.

    connect: how a pair's connection is opened; tests pass their own.
    """

    def __init__(self, spec: WorkerSpec, connect: Connector = connect_pair) -> None:
        self._spec = spec
        self._pulse = Pulse()
        self._loaded = load_worker_engine(spec, self._pulse, shared=False)
        self.session = SessionServer(self, spec.secret, spec.host)
        self.pool = BlockPool(self._loaded.num_blocks)
        inbox: Inbox[Message | Stop] = Inbox()
        self._inbox = inbox
        connection = pair_connection(connect, self._loaded.identity, self._loaded.storage, spec.handoff)
        self._pairs = Pairs(connection, inbox.post, self.session.publish)
        self._desk = PrefillDesk(
            self.pool,
            self._loaded.layout.block_size,
            PrefillLimits(
                spec.engine.prefill_budget_tokens,
                spec.handoff.reservation_ttl_s,
                spec.handoff.renewal_s,
                spec.engine.step_target_ms / 1000,
            ),
            self._pulse,
            eos_token_ids=self._loaded.eos_token_ids,
        )
        courier = Courier(self._pairs.senders, inbox.post)
        hands = PrefillHands(self._loaded.engine, courier, self.session.publish)
        self._loop: Loop[Message, Word, Copy, HandoffId, PrefillChunk] = Loop(
            self._desk, inbox, hands, self._pulse
        )
        self._threads = WorkerThreads(self.session.fail)
        self._threads.add("engine", self._loop.run)
        self._threads.add_periodic("report", REPORT_INTERVAL_S, self._report)

    def start(self) -> int:
        """Serve; the session's port."""
        self._threads.start()
        return self.session.start()

    def stop(self) -> None:
        """End everything."""
        self._threads.leave()
        with ExitStack() as ends:  # all are done, whatever becomes of one; the last named first
            if self._loaded.cores is not None:
                ends.callback(self._loaded.cores.close)
            ends.callback(self._threads.join)
            ends.callback(self._inbox.post, Stop())
            ends.callback(self._pairs.close)
            ends.callback(self.session.stop)

    def hear_sender(self, word: str, *arguments: object) -> None:
        """Nobody hands off to a prefill worker."""
        raise TypeError(f"a prefill worker takes no hand-offs ({word}, {len(arguments)} arguments)")

    # SessionHandler, on the session's thread.

    def hello(self) -> Hello:
        """Introduce this worker."""
        return Hello(
            pool=Pool.PREFILL,
            incarnation=self._spec.incarnation,
            pid=os.getpid(),
            blocks_total=self._loaded.num_blocks,
            block_size=self._loaded.layout.block_size,
            kv_bytes=self._loaded.num_blocks * self._loaded.layout.block_bytes,
            cpus=machine_cpus(),
            cpus_usable=usable_cpus(),
            kernels=str(self._loaded.engine.kernel.facts),
        )

    def command(self, command: Command) -> None:
        """What the router wants."""
        match command:
            # Of one attempt: no two share a prompt's blocks yet.
            case Prefill(attempts=(_,)) | CancelPrefill() | Audit():
                self._inbox.post(command)
            case JoinPair():
                self._pairs.join(command)
            case LeavePair(decode):
                self._pairs.leave(decode)
            case _:
                raise ValueError(f"not a prefill worker's command: {type(command).__name__}")

    def work_lost(self, holders: Collection[HolderId]) -> None:
        """Free what the router had here. Pairs stay: the next router may use them."""
        for holder in holders:
            self.command(CancelPrefill(HandoffId(holder)))  # nothing else holds anything here

    def _report(self) -> None:
        self._pulse.measured(cpu_seconds(), resident_bytes())
        self.session.publish(self._desk.load())
