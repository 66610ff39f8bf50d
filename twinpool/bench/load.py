"""Sends requests at their times, whatever became of earlier ones, and notes when what came back.

A request's life: due -> begun (its sender came to it) -> sent (it has one of the slots) -> chunks -> ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from twinpool.bench.metrics import Effort
from twinpool.bench.prompts import Prompt
from twinpool.bench.records import Answered, Record
from twinpool.errors import DeadlineExceeded, TwinpoolError


class Sender(Protocol):
    """One way to a server; carries any number of requests at a time."""

    async def send(self, prompt: Prompt, saw_tokens: Callable[[], None]) -> Answered:
        """Ask, read the answer to its end, and call saw_tokens at each chunk with tokens.

        Raises TwinpoolError for whatever goes wrong. A send that is cancelled leaves the request cancelled.
        """
        ...


class Load:
    """One run. records: one for each prompt, in order; they are filled while `run` runs, however it ends."""

    def __init__(
        self,
        sender: Sender,
        prompts: Sequence[Prompt],
        due_s: Sequence[float],
        *,
        max_concurrency: int | None,
        timeout_s: float,
    ) -> None:
        """due_s: when each is sent, in seconds since the run begins. timeout_s: of each answer."""
        self._sender = sender
        self._timeout_s = timeout_s
        self._prompts = prompts
        self._slots = asyncio.Semaphore(max_concurrency or max(1, len(prompts)))
        self.records = [Record(due) for due in due_s]
        self.effort = Effort(0.0, 0.0)
        self._began = 0.0

    async def run(self, ended: Callable[[], object]) -> None:
        """Until every request is over; ended is called at each one's end. What failed has a record, too."""
        self._began, cpu_began = time.monotonic(), time.process_time()
        try:
            async with asyncio.TaskGroup() as requests:
                for prompt, record in sorted(
                    zip(self._prompts, self.records, strict=True), key=lambda pair: pair[1].due_s
                ):
                    # To the time itself, not for a while: a late request does not make the next one late.
                    await asyncio.sleep(max(0.0, record.due_s - self._now()))
                    requests.create_task(self._request(prompt, record, ended))
        finally:
            self.effort = Effort(self._now(), time.process_time() - cpu_began)

    async def _request(self, prompt: Prompt, record: Record, ended: Callable[[], object]) -> None:
        record.begun_s = self._now()
        async with self._slots:
            record.sent_s = self._now()
            try:
                async with asyncio.timeout(self._timeout_s):
                    record.answered = await self._sender.send(
                        prompt, lambda: record.chunks_s.append(self._now())
                    )
            except TimeoutError:
                record.error = f"{DeadlineExceeded.reason}: no whole answer within {self._timeout_s:g} s"
            except TwinpoolError as error:
                record.error = f"{error.reason}: {error}"
            record.ended_s = self._now()
        ended()

    def _now(self) -> float:
        return time.monotonic() - self._began
