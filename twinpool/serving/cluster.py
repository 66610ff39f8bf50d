"""The Ray cluster under `serve`: one of its own, gone without a trace afterwards, or one it joins."""

from __future__ import annotations

import logging
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from twinpool.cpus import machine_cpus
from twinpool.engine.kernels.cores import remove_unused
from twinpool.errors import StartFailed
from twinpool.serving.ray_answers import require_answer
from twinpool.serving.undisturbed import undisturbed

NAMESPACE = "twinpool"
JOIN_TIMEOUT_S = 60.0
START_TIMEOUT_S = 120.0
"""Ray has shorter ones of its own for each of its steps."""
ROOM_TO_SCALE = 64
OBJECT_STORE_BYTES = 256 * 1024 * 1024
"""Only the `ray` hand-off transport puts anything there, a few chunks at a time."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """is_local: started by this process, on this machine alone."""

    is_local: bool


@contextmanager
def ray_cluster(address: str, num_workers: int) -> Iterator[Cluster]:
    """Start (`local`) or join a cluster; left, and ended if it was started here, with the context.

    Raises StartFailed where it cannot be started or joined.
    """
    if address != "local":
        with _joined(address):
            yield Cluster(is_local=False)
        return
    # UNIX socket paths end at 107 bytes, so the folder must be short: not under a long TMPDIR.
    folder = tempfile.mkdtemp(prefix="tp-", dir="/tmp" if os.path.isdir("/tmp") else None)  # noqa: S108, PTH112
    try:
        # Logical CPUs only place workers, of which there may be more than cores, and more to come.
        with _started(folder, max(machine_cpus(), num_workers) + ROOM_TO_SCALE):
            yield Cluster(is_local=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        remove_unused()


def _started(folder: str, num_cpus: int) -> AbstractContextManager[None]:
    return _ray(
        "Ray did not start",
        folder,
        START_TIMEOUT_S,
        address="local",
        num_cpus=num_cpus,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=folder,
    )


def _joined(address: str) -> AbstractContextManager[None]:
    require_answer(address)
    failure = f"cannot join the Ray cluster at {address}"
    return _ray(failure, sysconfig.get_path("stdlib"), JOIN_TIMEOUT_S, address=address)


@contextmanager
def _ray(failure: str, working_folder: str, timeout_s: float, **settings: Any) -> Iterator[None]:
    """Ray, while it lasts. Raises StartFailed, beginning with `failure`.

    working_folder: workers search it for modules before all others. In its place, our own would have what
    lies there taken for modules of Python's. It must hold none that workers do not find anyway, and be
    nobody else's to write.
    """

    def start() -> None:
        ray.init(namespace=NAMESPACE, logging_level=logging.WARNING, **settings)

    try:
        with chdir(working_folder):
            ends = ExitStack()
            ends.enter_context(undisturbed(start, ray.shutdown, timeout_s))
    except TimeoutError as error:
        raise StartFailed(f"{failure}: no answer within {timeout_s:g} s") from error
    except Exception as error:
        raise StartFailed(f"{failure}: {error}") from error
    with ends:
        yield
