"""The Ray cluster under `serve`: one of its own, gone without a trace afterwards, or one it joins."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from twinpool.cpus import machine_cpus
from twinpool.errors import StartFailed

NAMESPACE = "twinpool"
JOIN_TIMEOUT_S = 5.0
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
        _join(address)
        try:
            yield Cluster(is_local=False)
        finally:
            ray.shutdown()
        return
    # UNIX socket paths end at 107 bytes, so the folder must be short: not under a long TMPDIR.
    folder = tempfile.mkdtemp(prefix="tp-", dir="/tmp" if os.path.isdir("/tmp") else None)  # noqa: S108, PTH112
    try:
        # Logical CPUs only place workers, of which there may be more than cores, and more to come.
        _start(folder, max(machine_cpus(), num_workers) + ROOM_TO_SCALE)
        yield Cluster(is_local=True)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: str, num_cpus: int) -> None:
    try:
        _init(
            folder,
            address="local",
            num_cpus=num_cpus,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=folder,
        )
    except Exception as error:
        raise StartFailed(f"Ray did not start: {error}") from error


def _join(address: str) -> None:
    _require_reachable(address)
    try:
        _init(sysconfig.get_path("stdlib"), address=address)
    except Exception as error:
        raise StartFailed(f"cannot join the Ray cluster at {address}: {error}") from error


def _init(working_folder: str, **settings: Any) -> None:
    """Start or join Ray in another working folder, which workers search for modules before all others.

    So nothing in ours is taken for a module of Python's. This folder must hold none that workers do not
    find anyway, and be nobody else's to write.
    """
    with chdir(working_folder):
        ray.init(namespace=NAMESPACE, logging_level=logging.WARNING, **settings)


def _require_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return  # `auto`, which Ray looks up on this machine
    try:
        socket.create_connection((host, int(port)), JOIN_TIMEOUT_S).close()
    except OSError as error:
        raise StartFailed(f"no Ray cluster answers at {address}: {error}") from error
