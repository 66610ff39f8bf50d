"""A worker behind a session that only notes what it is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection

from twinpool.session.messages import Command, Drop, Hello, LeavePair
from twinpool.types import AttemptId, HolderId, Pool

SECRET = "the cluster's secret"
WAIT_S = 10.0
HELLO = Hello(Pool.DECODE, "decode-0-aa", pid=1, blocks_total=8, block_size=16, kv_bytes=64)


class FakeWorker:
    """Counts what it is told; a command named `fail` fails."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.num_lost = 0
        self.lost: set[HolderId] = set()
        self.introduction = HELLO
        self.changed = threading.Condition()

    def hello(self) -> Hello:
        return self.introduction

    def command(self, command: Command) -> None:
        if command in (Drop(AttemptId("fail")), LeavePair("fail")):
            raise RuntimeError("as told")
        with self.changed:
            self.commands.append(command)
            self.changed.notify_all()

    def work_lost(self, holders: Collection[HolderId]) -> None:
        with self.changed:
            self.num_lost += 1
            self.lost |= set(holders)
            self.changed.notify_all()

    async def wait_for(self, holds: Callable[[], bool]) -> None:
        def wait() -> bool:
            with self.changed:
                return self.changed.wait_for(holds, WAIT_S)

        assert await asyncio.to_thread(wait)
