"""A prefill worker, whole: engine, cache, pairs and session, wired together.

Plain Python: `prefill_worker.actor` runs it under Ray, tests run it as it is.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from prefill_worker.loop import CancelAll, Message, PrefillLimits, PrefillLoop, Stop
from twinpool.inbox import Inbox
from twinpool.kv.blocks import BlockPool
from twinpool.messages import Audit, CancelPrefill, Command, Hello, JoinPair, LeavePair, Prefill
from twinpool.pulse import REPORT_INTERVAL_S, Pulse
from twinpool.rpc.session_server import SessionServer
from twinpool.transfer.connect import Connector, connect_pair, pair_connection
from twinpool.transfer.pairs import Pairs
from twinpool.types import Pool
from twinpool.worker_engine import load_worker_engine
from twinpool.worker_spec import WorkerSpec

log = logging.getLogger(__name__)
THREAD_END_TIMEOUT_S = 10.0


class PrefillWorker:
    """Loaded by its constructor; `start` runs its threads and opens the session, `stop` ends all.

    connect: how a pair's connection is opened; tests pass their own.
    """

    def __init__(self, spec: WorkerSpec, connect: Connector = connect_pair) -> None:
        self._spec = spec
        self._loaded = load_worker_engine(spec, shared=False)
        self.session = SessionServer(self, spec.secret, spec.host)
        self.pool = BlockPool(self._loaded.num_blocks)
        inbox: Inbox[Message] = Inbox()
        self._inbox = inbox
        self._pulse = Pulse()
        connection = pair_connection(connect, self._loaded.identity, self._loaded.storage, spec.handoff)
        self._pairs = Pairs(connection, inbox.post, self.session.publish)
        self._loop = PrefillLoop(
            self._loaded.engine,
            self.pool,
            inbox,
            self._pairs.senders,
            PrefillLimits(spec.engine.prefill_budget_tokens, spec.handoff.reservation_ttl_s),
            self._pulse,
            eos_token_ids=self._loaded.eos_token_ids,
            publish=self.session.publish,
        )
        self._leaving = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(self._loop.run,), name="engine", daemon=True),
            threading.Thread(target=self._run, args=(self._report,), name="report", daemon=True),
        ]

    def start(self) -> int:
        """Serve; the session's port."""
        for thread in self._threads:
            thread.start()
        return self.session.start()

    def make_way(self) -> None:
        """Another router is about to open a session."""
        self.session.make_way()

    def seconds_alone(self) -> float:
        """How long there has been no router; 0 while there is one."""
        return self.session.seconds_alone()

    def stop(self) -> None:
        """End everything."""
        self._leaving.set()
        self.session.stop()
        self._pairs.close()
        self._inbox.post(Stop())
        for thread in self._threads:
            thread.join(THREAD_END_TIMEOUT_S)

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
        )

    def command(self, command: Command) -> None:
        """What the router wants."""
        match command:
            case Prefill() | CancelPrefill() | Audit():
                self._inbox.post(command)
            case JoinPair():
                self._pairs.join(command)
            case LeavePair(decode):
                self._pairs.leave(decode)
            case _:
                raise ValueError(f"not a prefill worker's command: {type(command).__name__}")

    def session_lost(self) -> None:
        """Free all that the router owned. Pairs stay: the next router may use them."""
        self._inbox.post(CancelAll())

    def _report(self) -> None:
        while not self._leaving.wait(REPORT_INTERVAL_S):
            self._pulse.measure_process()
            self.session.publish(self._loop.load())

    def _run(self, work: Callable[[], None]) -> None:
        """A thread without which this worker is none: the router must hear if it fails."""
        try:
            work()
        except Exception:
            name = threading.current_thread().name
            log.exception("the %s thread failed", name)
            self.session.fail(f"its {name} thread failed")
