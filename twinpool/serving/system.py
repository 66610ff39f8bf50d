"""A running system, composed: launcher, router, servers. Whoever holds it decides when it starts and ends.

listen (not serving) ─► workers up, pairs joined, canaries through ─► ready ─► drain: refuse new
requests, finish running streams (bounded) ─► workers ended, ports closed
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from itertools import product
from typing import Any

from router.dispatch.dispatcher import RunningDispatcher
from router.dispatch.seats import Roster
from router.entrance.operations import Operations
from router.faces.address import Address
from router.pools.canary import Canary
from router.pools.keeper import PoolKeeper
from router.pools.launcher import Leave
from router.pools.scaling import Scaling
from router.scheduling.commands import Drained, ProbePair, ReplaceWorker
from router.server import RouterServer, build_server
from router.telemetry.metrics import Metrics
from router.telemetry.metrics_server import MetricsServer
from twinpool.checkpoint.detokenizer import IncrementalDetokenizer
from twinpool.checkpoint.dtype import resolve_dtype
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.checkpoint.tokenizer import Tokenizer
from twinpool.config import ServeConfig
from twinpool.errors import StartFailed
from twinpool.serving.cluster import Cluster
from twinpool.serving.launcher import BUILDERS, Builders, RayLauncher
from twinpool.types import ModelCard, Pool, WorkerState
from twinpool.views import Hop

log = logging.getLogger(__name__)
CANARY_TIMEOUT_S = 30.0
CANARY_PROMPT_TOKENS = 4
READY_POLL_S = 0.05
END_TIMEOUT_S = 15.0
POOLS_END_TIMEOUT_S = 120.0
"""A worker that does not let itself be ended is asked for again and again (`twinpool.serving.ray_calls`)."""

Steps = Callable[[str], None]
"""Told, in words, each step of the start."""


class ServingSystem:
    """All parts of a running router, wired together; made on the event loop that it runs on.

    broken: set to the error if a part ended that must run always; then nothing can be relied on any more.
    taken_over: set to the reason once another router has the workers.
    leave: which workers stay, for the next router, when this one ends.
    """

    def __init__(
        self,
        config: ServeConfig,
        model: PreparedModel,
        cluster: Cluster,
        steps: Steps,
        builders: Builders = BUILDERS,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._model = model
        self._steps = steps
        dtype = resolve_dtype(config.engine.dtype, config.engine.kernels, config.engine.kv_dtype)
        card = ModelCard(
            name=model.name,
            max_context_tokens=model.description.max_context_tokens,
            vocab_size=model.description.vocab_size,
            eos_token_ids=model.eos_token_ids,
            dtype=dtype,
        )
        tokenizer = Tokenizer.load(model.folder)
        metrics, roster = Metrics(), Roster()
        self._roster = roster
        metrics.describe(version("twinpool"), {"block_size": str(config.engine.block_size), "dtype": dtype})
        self.dispatcher = RunningDispatcher(config, model.name, metrics, roster, pools=self)
        self._canary = Canary(self.dispatcher, (0,) * CANARY_PROMPT_TOKENS, CANARY_TIMEOUT_S)
        launcher = RayLauncher(config, cluster, model, dtype, builders)
        self._keeper = PoolKeeper(
            config, launcher, self.dispatcher, roster, metrics, steps, broken=self._break
        )
        self.taken_over = self._keeper.taken_over
        self.leave = Leave.NONE
        self._metrics_server = MetricsServer(metrics, self.dispatcher.snapshot)
        scaling = Scaling(config, roster, self._keeper, metrics, self.dispatcher.snapshot)
        self._server: RouterServer = build_server(
            dispatcher=self.dispatcher,
            operations=Operations(self.dispatcher, self._canary, scaling),
            tokenizer=tokenizer,
            new_detokenizer=lambda skip: IncrementalDetokenizer(tokenizer, skip),
            card=card,
            metrics=metrics,
            config=config.router,
        )
        self.inference = self.operations = self.metrics = Address("", 0)
        self.broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ServingSystem]:
        """Listening and starting workers; all of it ended with the context."""
        config = self._config
        always = (self.dispatcher.tick_forever(), self._tell_health(), self._metrics_server.watch_loop())
        tasks = [self._run_always(work) for work in always]
        try:
            self.inference, self.operations = await self._server.start(
                Address(config.host, config.port), Address(config.ops_host, config.ops_port)
            )
            port = await self._metrics_server.start(config.metrics_host, config.metrics_port)
            self.metrics = Address(config.metrics_host, port)
            self._steps(f"starting {config.prefill} prefill and {config.decode} decode workers")
            self._keeper.start()
            yield self
        except StartFailed:
            # What had been up before is not ended for it; a cluster of our own has none.
            self.leave = Leave.ATTACHED
            raise
        finally:
            self.dispatcher.drain()
            grace_s = 0.0 if self.broken.done() else config.router.grace_s
            # Each is done, whatever becomes of the others; last in, first out.
            async with AsyncExitStack() as ends:
                ends.push_async_callback(_within, END_TIMEOUT_S, _cancel, tasks)
                ends.push_async_callback(_within, END_TIMEOUT_S, self._metrics_server.stop)
                ends.push_async_callback(_within, POOLS_END_TIMEOUT_S, self._stop_keeper)
                ends.push_async_callback(_within, grace_s + END_TIMEOUT_S, self._server.stop, grace_s)

    async def _stop_keeper(self) -> None:
        """A router that is broken leaves healthy workers to the next one, where they outlive it."""
        if self.broken.done() and not self._cluster.is_local:
            self.leave = Leave.ALL
        await self._keeper.stop(self.leave)

    def hurry(self) -> None:
        """End the streams that a stop is waiting for."""
        self._server.end_calls()

    @property
    def num_requests(self) -> int:
        """Requests admitted and not ended."""
        return self.dispatcher.snapshot().num_requests

    async def wait_until_ready(self, stop: asyncio.Event) -> bool:
        """True once every worker is ready, False if told to stop before. Raises StartFailed."""
        stopped = asyncio.create_task(stop.wait())
        try:
            async with asyncio.timeout(self._config.router.start_timeout_s):
                while not self._all_ready():
                    for failure in (self._keeper.failed, self.taken_over, self.broken):
                        if failure.done():
                            raise StartFailed(str(failure.result()))
                    await asyncio.wait({stopped}, timeout=READY_POLL_S)
                    if stopped.done():
                        return False
        except TimeoutError as error:
            late = f"not ready within {self._config.router.start_timeout_s:g} s"
            raise StartFailed("; ".join((late, *self._missing()))) from error
        finally:
            stopped.cancel()
        return True

    def ready_line(self) -> str:
        """Addresses, model, pools and blocks, and what computes."""
        pools = " ".join(f"{pool}={self._pool(pool)}" for pool in Pool)
        addresses = f"inference={self.inference} ops={self.operations} metrics={self.metrics}"
        return f"ready {addresses} model={self._model.name} {pools} kernels={self._kernels()}"

    # What the dispatcher asks of the pools.

    async def probe(self, pair: ProbePair) -> bool:
        """See `Pools.probe`."""
        check = await self._canary.check(pair.prefill_id, pair.decode_id)
        names = f"{pair.prefill_id} to {pair.decode_id} over {check.pair.transport}"
        if check.failed_hop is Hop.NONE:
            self._steps(f"a canary passed from {names}")
            return True
        log.error("a canary failed from %s at %s: %s", names, check.failed_hop, check.detail)
        return False

    def replace(self, command: ReplaceWorker) -> None:
        """See `Pools.replace`."""
        self._keeper.replace(command)

    def drained(self, command: Drained) -> None:
        """See `Pools.drained`."""
        self._keeper.drained(command)

    def _pool(self, pool: Pool) -> str:
        workers = [view for view in self.dispatcher.snapshot().workers if view.pool is pool]
        return f"{len(workers)}x{workers[0].blocks_total}blocks"

    def _kernels(self) -> str:
        """Without spaces, so that the line is words; several where workers differ."""
        views = self.dispatcher.snapshot().workers
        return "|".join(sorted({view.kernels.replace(", ", ",").replace(" ", "-") for view in views}))

    def _all_ready(self) -> bool:
        """Whether a canary has gone through every pair of workers that are wanted."""
        wanted = {pool: {seat.worker_id for seat in self._roster.wanted(pool)} for pool in Pool}
        pairs = self.dispatcher.snapshot().pairs
        ready = {(pair.prefill, pair.decode) for pair in pairs if pair.ready}
        return ready >= set(product(wanted[Pool.PREFILL], wanted[Pool.DECODE]))

    def _missing(self) -> list[str]:
        """The workers that are not ready, and why, in words."""
        views = self.dispatcher.snapshot().workers
        return [
            f"{view.id} is {view.state.replace('_', ' ')}{': ' + view.reason if view.reason else ''}"
            for view in views
            if view.state is not WorkerState.READY
        ]

    def _run_always(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            log.error("the router is broken", exc_info=error)
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_result(error)

    async def _tell_health(self) -> None:
        while True:
            await self.dispatcher.serving_changed.wait()
            self.dispatcher.serving_changed.clear()
            await self._server.set_serving(self.dispatcher.serving)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _within(timeout_s: float, end: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    """One step of the end, given up after its time, so that the next are done."""
    try:
        async with asyncio.timeout(timeout_s):
            await end(*arguments)
    except TimeoutError:
        log.error("%s has not ended within %g s", end.__qualname__, timeout_s)
