"""Starts and ends workers as Ray actors: the router's `Launcher`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import ray
import ray.exceptions

from decode_worker.actor import build_decode_worker
from prefill_worker.actor import build_prefill_worker
from router.launcher import StartedWorker
from twinpool.cli.cluster import NAMESPACE, Cluster
from twinpool.config import ServeConfig
from twinpool.errors import StartFailed
from twinpool.types import Pool
from twinpool.worker_actor import Worker, remote_worker_actor
from twinpool.worker_spec import WorkerSpec

STOP_TIMEOUT_S = 5.0

Builders = Mapping[Pool, Callable[[WorkerSpec], Worker]]
"""Makes a pool's worker, in the actor's process."""
BUILDERS: Builders = MappingProxyType({Pool.PREFILL: build_prefill_worker, Pool.DECODE: build_decode_worker})


class RayLauncher:
    """One actor per life of a worker; `max_restarts=0`, since the router's keeper replaces them itself.

    model_folder: the prepared model, at the same path on every node. dtype: float32 or bfloat16.
    builders: the one seam at which tests give workers faults.
    """

    def __init__(
        self, config: ServeConfig, cluster: Cluster, model_folder: str, dtype: str, builders: Builders
    ) -> None:
        self.secret = secrets.token_hex(32)
        self._config = config
        self._cluster = cluster
        self._model_folder = model_folder
        self._dtype = dtype
        self._builders = builders
        self._actor_class = remote_worker_actor()
        self._actors: dict[str, Any] = {}
        self._exits: dict[str, asyncio.Future[Any]] = {}

    async def start(self, worker_id: str, pool: Pool) -> StartedWorker:
        """See `Launcher.start`. Loading is bounded by start_timeout_s."""
        incarnation = f"{worker_id}-{secrets.token_hex(6)}"
        named = self._actor_class.options(name=incarnation, namespace=NAMESPACE)
        # Creating a named actor asks the cluster, and waits for its answer.
        spec = self._spec(worker_id, pool, incarnation)
        actor = await asyncio.to_thread(named.remote, spec, self._builders[pool])
        self._actors[incarnation] = actor
        try:
            timeout_s = self._config.router.start_timeout_s
            host, port, node = await asyncio.wait_for(_result(actor.address.remote()), timeout_s)
        except TimeoutError as error:
            await self._kill(incarnation)
            free = await asyncio.to_thread(_free_resources)
            raise StartFailed(f"not up within {timeout_s:g} s; {free}") from error
        except ray.exceptions.RayError as error:
            await self._kill(incarnation)
            raise StartFailed(_last_line(error)) from error
        except asyncio.CancelledError:
            await asyncio.shield(self._kill(incarnation))
            raise
        exit_ = asyncio.ensure_future(_result(actor.wait.remote()))
        # Also when nobody waits any more, as after our own kill, its error is no news.
        exit_.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._exits[incarnation] = exit_
        return StartedWorker(worker_id, pool, incarnation, f"{host}:{port}", node)

    async def wait_for_exit(self, worker: StartedWorker) -> str:
        """See `Launcher.wait_for_exit`."""
        try:
            await asyncio.shield(self._exits[worker.incarnation])
        except ray.exceptions.RayError as error:
            return _last_line(error)
        return "it was stopped"

    async def stop(self, worker: StartedWorker) -> None:
        """See `Launcher.stop`."""
        actor = self._actors.get(worker.incarnation)
        if actor is None:
            return
        # Stuck or dead already: then the kill ends it.
        with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
            await asyncio.wait_for(_result(actor.stop.remote()), STOP_TIMEOUT_S)
        await self._kill(worker.incarnation)

    async def kill(self, worker: StartedWorker) -> None:
        """See `Launcher.kill`."""
        await self._kill(worker.incarnation)

    def _spec(self, worker_id: str, pool: Pool, incarnation: str) -> WorkerSpec:
        num_workers = self._config.prefill + self._config.decode
        share = max(1, self._cluster.num_cores // num_workers)
        return WorkerSpec(
            worker_id=worker_id,
            pool=pool,
            incarnation=incarnation,
            model_folder=self._model_folder,
            dtype=self._dtype,
            threads=self._config.engine.threads or share,
            engine=self._config.engine,
            handoff=self._config.handoff,
            host="127.0.0.1" if self._cluster.is_local else "",
            log_level=self._config.log_level,
            secret=self.secret,
        )

    async def _kill(self, incarnation: str) -> None:
        actor = self._actors.pop(incarnation, None)
        self._exits.pop(incarnation, None)
        if actor is not None:
            # Blocks until the process is gone, so not on the event loop.
            await asyncio.to_thread(ray.kill, actor, no_restart=True)


async def _result(reference: Any) -> Any:
    """An actor call's result, awaited on this event loop."""
    return await reference


def _last_line(error: Exception) -> str:
    """Ray's errors carry a whole traceback; its last line says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _free_resources() -> str:
    """What a worker that could not be placed was waiting for."""
    free = ray.available_resources().get("CPU", 0)  # type: ignore[no-untyped-call]
    total = ray.cluster_resources().get("CPU", 0)  # type: ignore[no-untyped-call]
    return f"a worker needs 1 CPU, and {free:g} of the cluster's {total:g} are free"
