"""What processes share beside their sockets, and must not leave behind: memory, and Ray's objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray._private.internal_api import memory_summary

from twinpool.client.status import Status
from twinpool.config import ServeConfig
from twinpool.types import Pool

EMPTY_STORE = "Plasma memory usage 0 MiB, 0 objects"


def left_in_memory(config: ServeConfig, status: Status) -> list[str]:
    """What a system at rest shares beside each decode worker's own pool, in words."""
    pools = {each for worker in status.workers for each in shared_memory(worker.pid)}
    by_ray = config.handoff.transport == "ray"
    num_pools = 0 if by_ray else len(status.pool(Pool.DECODE))
    left = [] if len(pools) <= num_pools else [f"{sorted(pools)} where there are {num_pools} pools"]
    if by_ray and EMPTY_STORE not in (store := object_store()):
        left.append(store)
    return left


def object_store() -> str:
    """How full the object store of the cluster is, in Ray's words."""
    summarize: Any = memory_summary
    summary: str = summarize(ray.get_runtime_context().gcs_address, stats_only=True)
    return summary


def shared_memory(pid: int) -> Iterator[str]:
    """Each memfd that a process maps or has open, by its name and inode; none of one that is gone."""
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "/memfd:" in line:
                _, _, _, _, inode, name = line.split(maxsplit=5)
                yield f"{name} {inode}"
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if (name := str(entry.readlink())).startswith("/memfd:"):
                yield f"{name} {entry.stat().st_ino}"
    except FileNotFoundError:
        return
