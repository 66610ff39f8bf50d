"""Which process a connection belongs to: inherited by fork, it has its sockets and none of its threads."""

from __future__ import annotations

import os

from twinpool.client.errors import ClientForked


class HomeProcess:
    """The process that made it. gRPC in a forked child is a matter of luck: it may answer, hang or abort."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made it, and not a forked child of it."""
        return os.getpid() == self._pid

    def require(self) -> None:
        """Raises ClientForked in any other process."""
        if not self.is_here:
            raise ClientForked(
                f"this client was made in process {self._pid} and inherited by fork: make a new one in each "
                "process, and start processes by `spawn`"
            )
