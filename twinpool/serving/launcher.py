"""Starts and ends workers as Ray actors: the router's `Launcher`.

On a cluster that was joined, actors are detached and named per deployment: the next router takes them over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import ray
import ray.exceptions

from decode_worker.actor import build_decode_worker
from prefill_worker.actor import build_prefill_worker
from router.faces.address import Address
from router.pools.launcher import StartedWorker
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.config import ServeConfig
from twinpool.cpus import usable_cpus
from twinpool.errors import NotPlaced, StartFailed, TakenOver
from twinpool.resources import PoolResources
from twinpool.serving.claim import Claim
from twinpool.serving.cluster import NAMESPACE, Cluster
from twinpool.serving.ray_calls import end, last_line, result
from twinpool.serving.survivors import Survivor, take_over
from twinpool.session.limits import TAKEN_OVER
from twinpool.types import Pool
from twinpool.worker.actor import Introduction, Worker, remote_worker_actor
from twinpool.worker.spec import WorkerSpec

log = logging.getLogger(__name__)
STOP_TIMEOUT_S = 5.0
CREATE_TIMEOUT_S = 30.0
GIVE_UP_TIMEOUT_S = 2.0
MIB = 1024 * 1024
PLACED_SOON_S = 10.0
"""A process that is not there by then is reported to wait."""

Builders = Mapping[Pool, Callable[[WorkerSpec], Worker]]
"""Makes a pool's worker, in the actor's process."""
BUILDERS: Builders = MappingProxyType({Pool.PREFILL: build_prefill_worker, Pool.DECODE: build_decode_worker})


class RayLauncher:
    """One actor per life of a worker; `max_restarts=0`, since the router's keeper replaces them itself.

    model: prepared, at the same path on every node. dtype: float32 or bfloat16.
    builders: the one seam at which tests give workers faults.
    """

    def __init__(
        self, config: ServeConfig, cluster: Cluster, model: PreparedModel, dtype: str, builders: Builders
    ) -> None:
        self.secret = secrets.token_hex(32)
        self._config = config
        self._cluster = cluster
        self._model = model
        self._dtype = dtype
        self._builders = builders
        self._actor_class = remote_worker_actor()
        self._actors: dict[str, Any] = {}
        self._exits: dict[str, asyncio.Future[Any]] = {}
        self._survivors: dict[str, Survivor] = {}
        self._router = secrets.token_hex(8)
        self._claim = Claim(config.deployment, self._router)

    async def take_over(self, seats: Mapping[str, Pool]) -> None:
        """Have the workers that an older router left ready for these seats; end those that do not fit.

        A cluster of this process's own has none.
        """
        if self._cluster.is_local:
            return
        await self._claim.make()
        wanted = {worker_id: self._spec(worker_id, pool, "").fingerprint for worker_id, pool in seats.items()}
        self._survivors = await take_over(self._config.deployment, self._router, wanted)
        for survivor in self._survivors.values():
            self.secret = survivor.introduction["secret"]

    async def is_taken_over(self) -> bool:
        """See `Launcher.is_taken_over`."""
        return await self._claim.is_lost()

    async def end_survivors(self, except_for: Collection[str] = ()) -> None:
        """See `Launcher.end_survivors`."""
        unused = [worker_id for worker_id in self._survivors if worker_id not in except_for]
        await asyncio.gather(*(end(self._survivors.pop(worker_id).actor) for worker_id in unused))

    async def start(self, worker_id: str, pool: Pool, waits: Callable[[str], None]) -> StartedWorker:
        """See `Launcher.start`. Placing and loading are each bounded by start_timeout_s."""
        await self._require_claim()
        if survivor := self._survivors.pop(worker_id, None):
            return self._started(survivor.actor, survivor.introduction, attached=True)
        spec = self._spec(worker_id, pool, f"{worker_id}-{secrets.token_hex(6)}")
        actor = await self._create(spec)
        self._actors[spec.incarnation] = actor
        try:
            await self._placed(actor, self._config.resources(pool), waits)
            timeout_s = self._config.router.start_timeout_s
            introduction = await asyncio.wait_for(result(actor.load.remote()), timeout_s)
            await self._require_claim()  # a router that came meanwhile may not have seen this actor
        except TimeoutError as error:
            await self._kill(spec.incarnation)
            raise StartFailed(f"not up within {timeout_s:g} s") from error
        except (NotPlaced, TakenOver, asyncio.CancelledError):
            await asyncio.shield(self._kill(spec.incarnation))
            raise
        except Exception as error:
            # Ray's, or the worker's own: in any case this life is over, and its seat is to try again.
            await self._kill(spec.incarnation)
            raise StartFailed(last_line(error)) from error
        return self._started(actor, introduction, attached=False)

    async def _create(self, spec: WorkerSpec) -> Any:
        """The actor, not placed yet. One that comes too late, or that nobody wants any more, is ended."""
        named = self._actor_class.options(**self._options(spec))
        # Creating a named actor asks the cluster, and waits for its answer.
        creation = asyncio.ensure_future(asyncio.to_thread(named.remote, spec, self._builders[spec.pool]))
        try:
            return await asyncio.wait_for(asyncio.shield(creation), CREATE_TIMEOUT_S)
        except TimeoutError as error:
            creation.add_done_callback(_end_when_created)
            raise StartFailed(f"the cluster has not answered within {CREATE_TIMEOUT_S:g} s") from error
        except asyncio.CancelledError:
            creation.add_done_callback(_end_when_created)
            raise
        except Exception as error:
            raise StartFailed(last_line(error)) from error

    async def wait_for_exit(self, worker: StartedWorker) -> str:
        """See `Launcher.wait_for_exit`."""
        incarnation = worker.incarnation
        try:
            while (exit_ := self._exits.get(incarnation)) is not None:
                if await asyncio.shield(exit_):
                    return "it was stopped"
                await self._require_claim()
                # An older router has asked, which has yet to learn that it is one.
                if self._exits.get(incarnation) is exit_:
                    self._exits[incarnation] = _exit_of(self._actors[incarnation])
        except ray.exceptions.RayError as error:
            return last_line(error)
        return "it was ended"

    async def stop(self, worker: StartedWorker) -> bool:
        """See `Launcher.stop`."""
        actor = self._actors.get(worker.incarnation)
        if actor is None or await self._let_go(worker.incarnation):
            return False
        # Stuck or dead already: then the kill ends it.
        with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
            await asyncio.wait_for(result(actor.stop.remote()), STOP_TIMEOUT_S)
        return await self._kill(worker.incarnation)

    async def kill(self, worker: StartedWorker) -> bool:
        """See `Launcher.kill`."""
        return await self._kill(worker.incarnation)

    def release(self, worker: StartedWorker) -> None:
        """See `Launcher.release`."""
        self._forget(worker.incarnation)

    def _options(self, spec: WorkerSpec) -> dict[str, Any]:
        """Ray's words for what a worker's actor is."""
        wants = self._config.resources(spec.pool)
        return {
            "name": spec.actor_name,
            "namespace": NAMESPACE,
            "lifetime": None if self._cluster.is_local else "detached",
            "num_cpus": wants.cpus,
            "num_gpus": wants.gpus,
            "memory": wants.memory_mib * MIB or None,
            "resources": dict(wants.custom) or None,
            "label_selector": dict(wants.labels) or None,
            "runtime_env": {"env_vars": dict(wants.environment)} if wants.environment else None,
            "scheduling_strategy": "SPREAD" if wants.placement == "spread" else "DEFAULT",
        }

    async def _placed(self, actor: Any, wants: PoolResources, waits: Callable[[str], None]) -> None:
        """Until the actor's process is there. Raises NotPlaced after start_timeout_s."""
        placed = asyncio.ensure_future(result(actor.node.remote()))
        timeout_s, reason = self._config.router.start_timeout_s, "the cluster is silent"
        try:
            async with asyncio.timeout(timeout_s):
                while not (await asyncio.wait({placed}, timeout=PLACED_SOON_S))[0]:
                    waits(reason := await asyncio.to_thread(_why_unplaced, wants))
                await placed
        except TimeoutError as error:
            raise NotPlaced(f"no place within {timeout_s:g} s; {reason}") from error
        finally:
            placed.cancel()
        waits("")

    def _started(self, actor: Any, introduction: Introduction, *, attached: bool) -> StartedWorker:
        incarnation = introduction["incarnation"]
        self._actors[incarnation] = actor
        self._exits[incarnation] = _exit_of(actor)
        return StartedWorker(
            worker_id=introduction["worker_id"],
            pool=Pool(introduction["pool"]),
            incarnation=incarnation,
            address=str(Address(introduction["host"], introduction["port"])),
            node=introduction["node"],
            attached=attached,
        )

    def _spec(self, worker_id: str, pool: Pool, incarnation: str) -> WorkerSpec:
        return WorkerSpec(
            deployment=self._config.deployment,
            worker_id=worker_id,
            pool=pool,
            incarnation=incarnation,
            model_folder=str(self._model.folder),
            model_digest=self._model.digest,
            dtype=self._dtype,
            threads=self._threads(pool),
            shares_cores=not self._chosen_threads(pool),
            engine=self._config.engine,
            handoff=self._config.handoff,
            host="127.0.0.1" if self._cluster.is_local else "",
            log_level=self._config.log_level,
            log_format=self._config.log_format,
            router=self._router,
            start_timeout_s=self._config.router.start_timeout_s,
            orphan_timeout_s=self._config.router.orphan_timeout_s,
            secret=self.secret,
        )

    def _threads(self, pool: Pool) -> int:
        """As configured, or a share of what may be used here, or, elsewhere, what is asked for each."""
        if chosen := self._chosen_threads(pool):
            return chosen
        if self._cluster.is_local:
            return max(1, usable_cpus() // (self._config.prefill + self._config.decode))
        return max(1, int(self._config.resources(pool).cpus))

    def _chosen_threads(self, pool: Pool) -> int:
        """0 where nobody chose."""
        return self._config.resources(pool).threads or self._config.engine.threads

    async def _require_claim(self) -> None:
        if await self.is_taken_over():
            raise TakenOver(TAKEN_OVER)

    async def _kill(self, incarnation: str) -> bool:
        """What cannot be ended now may be asked for again; it also leaves by itself, for want of a router."""
        actor = self._actors.get(incarnation)
        if actor is None or await self._let_go(incarnation) or not await end(actor):
            return False
        self._forget(incarnation)
        return True

    async def _let_go(self, incarnation: str) -> bool:
        """Whether a worker is another router's by now, and so stays alive. If not, it can be no more."""
        if self._cluster.is_local:
            return False
        try:
            asked = result(self._actors[incarnation].give_up.remote(self._router))
            is_ours = await asyncio.wait_for(asked, GIVE_UP_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 (dead, stuck, or never placed: it serves nobody else)
            log.info("%s does not say whose it is: %s", incarnation, last_line(error))
            return False
        if not is_ours:
            self._forget(incarnation)
        return not is_ours

    def _forget(self, incarnation: str) -> None:
        self._actors.pop(incarnation, None)
        self._exits.pop(incarnation, None)


def _exit_of(actor: Any) -> asyncio.Future[Any]:
    """Done when the actor says that it was stopped, or that another router waits, or when it has died."""
    exit_ = asyncio.ensure_future(result(actor.wait.remote()))
    # Also when nobody waits any more, as after our own kill, its error is no news.
    exit_.add_done_callback(lambda done: done.cancelled() or done.exception())
    return exit_


def _end_when_created(creation: asyncio.Future[Any]) -> None:
    if not creation.cancelled() and creation.exception() is None:
        task = asyncio.ensure_future(end(creation.result()))
        _ENDING.add(task)
        task.add_done_callback(_ENDING.discard)


_ENDING: set[asyncio.Future[bool]] = set()
"""Held, since the event loop itself holds tasks only weakly."""


def _why_unplaced(wants: PoolResources) -> str:
    """What a worker waits for, and what there is of each."""
    free = ray.available_resources()  # type: ignore[no-untyped-call]
    total = ray.cluster_resources()  # type: ignore[no-untyped-call]
    names = {"CPU", *(["GPU"] if wants.gpus else []), *wants.custom}
    there = [f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in sorted(names)]
    if wants.memory_mib:
        there.append(f"{free.get('memory', 0) // MIB:g} of {total.get('memory', 0) // MIB:g} MiB")
    if wants.labels:
        nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        fit = [node for node in nodes if wants.labels.items() <= node.get("Labels", {}).items()]
        there.append(f"{len(fit)} of {len(nodes)} nodes are labelled so")
    return f"a worker needs {wants}; free in the cluster: {', '.join(there)}"
