"""The port through which the router starts and ends workers without knowing what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from twinpool.types import Pool


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """One life of a worker's process. address: host:port of its session. node: where it runs."""

    worker_id: str
    pool: Pool
    incarnation: str
    address: str
    node: str


class Launcher(Protocol):
    """Starts workers somewhere. All methods may take long, and none blocks the event loop."""

    secret: str
    """The cluster's secret, which every session shows."""

    async def start(self, worker_id: str, pool: Pool) -> StartedWorker:
        """Start a worker and wait until it listens. Raises StartFailed, with the reason."""
        ...

    async def wait_for_exit(self, worker: StartedWorker) -> str:
        """Wait until the worker's process has ended; why, in words."""
        ...

    async def stop(self, worker: StartedWorker) -> None:
        """End a worker, gently and then by force, within a bound. A worker already gone is fine."""
        ...

    async def kill(self, worker: StartedWorker) -> None:
        """End a worker at once. A worker already gone is fine."""
        ...
