"""Workers that an older router of the same deployment has left on a shared cluster.

named actors of the deployment ─► each is taken over: its old session ends ─► those that are what this
router would start are kept for their seats; the others are ended
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions
import ray.util

from twinpool.cli.cluster import NAMESPACE
from twinpool.worker_actor import Introduction
from twinpool.worker_spec import WorkerSpec

log = logging.getLogger(__name__)
TAKE_OVER_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Survivor:
    """One actor that lives, and what it said."""

    actor: Any
    introduction: Introduction


async def take_over(deployment: str, wanted: Callable[[WorkerSpec], bool]) -> dict[str, Survivor]:
    """Take over what an older router left; the survivors by worker id. Those not wanted are ended.

    All that are kept share one secret. Whatever does not answer within TAKE_OVER_TIMEOUT_S is ended too.
    """
    actors = await asyncio.to_thread(_actors_of, deployment)
    introductions = await asyncio.gather(*(_introduction(name, actor) for name, actor in actors.items()))
    kept: dict[str, Survivor] = {}
    for actor, introduction in zip(actors.values(), introductions, strict=True):
        if introduction is not None and _fits(introduction.spec, kept, wanted):
            kept[introduction.spec.worker_id] = Survivor(actor, introduction)
        else:
            await asyncio.to_thread(ray.kill, actor, no_restart=True)
    return kept


def _fits(spec: WorkerSpec, kept: dict[str, Survivor], wanted: Callable[[WorkerSpec], bool]) -> bool:
    secrets = {survivor.introduction.spec.secret for survivor in kept.values()}
    return spec.worker_id not in kept and secrets <= {spec.secret} and wanted(spec)


def _actors_of(deployment: str) -> dict[str, Any]:
    names = ray.util.list_named_actors(all_namespaces=False)
    actors = {}
    for name in sorted(name for name in names if name.startswith(f"{deployment}/")):
        with contextlib.suppress(ValueError):  # it has just ended
            actors[name] = ray.get_actor(name, namespace=NAMESPACE)
    return actors


async def _introduction(name: str, actor: Any) -> Introduction | None:
    """What an actor says; None if nothing that can be understood, whatever the reason."""
    try:
        said = await asyncio.wait_for(_result(actor.take_over.remote()), TAKE_OVER_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 (another version's classes may fail to unpickle in any way)
        log.warning("%s is not taken over: %s", name, error)
        return None
    return said if isinstance(said, Introduction) else None


async def _result(reference: Any) -> Any:
    return await reference
