"""The port through which the router starts and ends workers without knowing what they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from twinpool.types import Pool


class Leave(Enum):
    """Which workers outlive the router that stops."""

    NONE = "none"
    ATTACHED = "attached"
    """Those that an older router had started."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """One life of a worker's process.

    address: host:port of its session. node: where it runs. attached: an older router started it.
    """

    worker_id: str
    pool: Pool
    incarnation: str
    address: str
    node: str
    attached: bool = False


class Launcher(Protocol):
    """Starts workers somewhere. All methods may take long, and none blocks the event loop."""

    secret: str
    """The cluster's secret, which every session shows."""

    async def take_over(self, seats: Mapping[str, Pool]) -> None:
        """Before the first start: keep what an older router left for these seats, and end what does not fit.

        seats: the pool of each worker id.
        """
        ...

    async def is_taken_over(self) -> bool:
        """Whether a router that started later has, or will have, all workers."""
        ...

    async def end_survivors(self, except_for: Collection[str] = ()) -> None:
        """End what was taken over and is still unused, but for the seats (worker ids) that may yet use it."""
        ...

    async def start(self, worker_id: str, pool: Pool, waits: Callable[[str], None]) -> StartedWorker:
        """Start a worker, or attach one taken over, and wait until it listens.

        waits: told why there is no place for it yet, and an empty string once there is. Raises StartFailed,
        with the reason; NotPlaced if it found no place in time; TakenOver where it is another router's turn.
        """
        ...

    async def wait_for_exit(self, worker: StartedWorker) -> str:
        """Wait until the worker's process has ended; why, in words.

        Raises TakenOver where another router has the worker now.
        """
        ...

    async def stop(self, worker: StartedWorker) -> bool:
        """End a worker, gently and then by force, within a bound; see `kill`."""
        ...

    async def kill(self, worker: StartedWorker) -> bool:
        """End a worker at once. One already gone or released is fine.

        True once its process is known to have ended; False if it may live: it is another router's, could not
        be ended, or was let go of before.
        """
        ...

    def release(self, worker: StartedWorker) -> None:
        """Forget a worker without ending it: the next router may take it over."""
        ...
