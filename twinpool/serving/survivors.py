"""Workers that an older router of the same deployment has left on a shared cluster.

named actors of the deployment ─► each is taken over: its old session ends ─► those that are what this
router would start are kept for their seats; the others are ended
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import ray
import ray.exceptions
import ray.util

from twinpool.protocol import SESSION, Versions
from twinpool.serving.cluster import NAMESPACE
from twinpool.serving.ray_calls import end, result
from twinpool.worker.actor import Introduction

log = logging.getLogger(__name__)
TAKE_OVER_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Survivor:
    """One actor that lives, and what it said."""

    actor: Any
    introduction: Introduction


async def take_over(deployment: str, router: str, wanted: Mapping[str, str]) -> dict[str, Survivor]:
    """Take over what an older router left; the survivors by worker id. Those that do not fit are ended.

    router: who takes them. wanted: the fingerprint of each seat's worker, by worker id. All that are kept
    share one secret. Whatever does not answer within TAKE_OVER_TIMEOUT_S, or in words that are not
    understood, is ended too.
    """
    actors = await asyncio.to_thread(_actors_of, deployment)
    introductions = await asyncio.gather(
        *(_introduction(name, actor, router) for name, actor in actors.items())
    )
    kept: dict[str, Survivor] = {}
    unfit = []
    for actor, introduction in zip(actors.values(), introductions, strict=True):
        if introduction is not None and fits(introduction, kept, wanted):
            kept[introduction["worker_id"]] = Survivor(actor, introduction)
        else:
            unfit.append(actor)
    await asyncio.gather(*(end(actor) for actor in unfit))
    return kept


def fits(introduction: Introduction, kept: Mapping[str, Survivor], wanted: Mapping[str, str]) -> bool:
    """Whether a worker takes a seat beside those kept already; see `take_over`."""
    worker_id = introduction["worker_id"]
    secrets = {survivor.introduction["secret"] for survivor in kept.values()}
    is_wanted = wanted.get(worker_id) == introduction["fingerprint"]
    speaks = SESSION.common(Versions(*introduction["session"])) is not None
    return is_wanted and speaks and worker_id not in kept and secrets <= {introduction["secret"]}


def _actors_of(deployment: str) -> dict[str, Any]:
    names = ray.util.list_named_actors(all_namespaces=False)
    actors = {}
    for name in sorted(name for name in names if name.startswith(f"{deployment}/")):
        with contextlib.suppress(ValueError):  # it has just ended
            actors[name] = ray.get_actor(name, namespace=NAMESPACE)
    return actors


async def _introduction(name: str, actor: Any, router: str) -> Introduction | None:
    """What an actor says; None if nothing that can be understood, whatever the reason."""
    try:
        said = await asyncio.wait_for(result(actor.take_over.remote(router)), TAKE_OVER_TIMEOUT_S)
        return cast("Introduction", {key: said[key] for key in Introduction.__annotations__})
    except Exception as error:  # noqa: BLE001 (another version's actor may fail, or answer, in any way)
        log.warning("%s is not taken over: %r", name, error)
        return None
