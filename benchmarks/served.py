"""A `twinpool serve` process to measure, and the gaps between the tokens that its clients read."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from twinpool import Client
from twinpool.client.operations import OperationsClient
from twinpool.client.values import Summary
from twinpool.types import Pool, WorkerState

READY = re.compile(r"ready inference=(\S+) ops=(\S+) ")
WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Served:
    """Clients of both ports."""

    client: Client
    operations: OperationsClient

    def wait_until_ready(self, prefill: int, decode: int) -> None:
        """Until both pools have so many workers, and a canary has gone through every pair."""
        deadline = time.monotonic() + WAIT_S
        while True:
            status = self.operations.status()
            sizes = (len(status.pool(Pool.PREFILL)), len(status.pool(Pool.DECODE)))
            ready = all(worker.state is WorkerState.READY for worker in status.workers)
            if (
                ready
                and sizes == (prefill, decode)
                and sum(p.ready for p in status.pairs) == prefill * decode
            ):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready: {status}")
            time.sleep(0.05)

    def pid_of(self, worker_id: str) -> int:
        """A worker's process."""
        return next(worker.pid for worker in self.operations.status().workers if worker.id == worker_id)


@contextmanager
def served(*options: str) -> Iterator[Served]:
    """Serve on free ports until the context ends."""
    command = [sys.executable, "-m", "twinpool.cli.app", "serve", "--port", "0", "--ops-port", "0"]
    process = subprocess.Popen(
        [*command, "--metrics-port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        ready = READY.match(process.stdout.readline())
        if ready is None:
            raise RuntimeError("serve did not become ready; run it by hand to see why")
        with Client(ready[1]) as client, OperationsClient(ready[2]) as operations:
            yield Served(client, operations)
    finally:
        process.terminate()
        process.wait(WAIT_S)
        process.stdout.close()


@dataclass(slots=True)
class Reading:
    """One stream as its client saw it: when each chunk came, in seconds since the request was sent."""

    times_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    summary: Summary | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.times_s[0]

    def gaps_s(self) -> list[float]:
        """Between chunks."""
        return [after - before for before, after in zip(self.times_s, self.times_s[1:], strict=False)]


class Readers:
    """Streams read at once, each by a thread of its own."""

    def __init__(self, client: Client, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        self._client = client
        self.readings = [Reading() for _ in prompts]
        self._threads = ThreadPoolExecutor(len(prompts))
        self._done: list[Future[None]] = [
            self._threads.submit(self._read, prompt, num_tokens, reading)
            for prompt, reading in zip(prompts, self.readings, strict=True)
        ]

    def wait_for(self, num_tokens: int) -> None:
        """Until every stream has so many tokens."""
        while any(reading.num_tokens < num_tokens for reading in self.readings):
            for done in self._done:
                if done.done():
                    done.result()
            time.sleep(0.005)

    def finish(self) -> list[Reading]:
        """All readings, once all streams have ended."""
        for done in self._done:
            done.result(WAIT_S)
        self._threads.shutdown()
        return self.readings

    def _read(self, prompt: Sequence[int], num_tokens: int, reading: Reading) -> None:
        started = time.monotonic()
        stream = self._client.generate(
            list(prompt), max_tokens=num_tokens, temperature=0.0, ignore_eos=True, timeout=WAIT_S
        )
        for chunk in stream:
            if chunk.token_ids:
                reading.times_s.append(time.monotonic() - started)
                reading.num_tokens += len(chunk.token_ids)
            reading.summary = chunk.summary or reading.summary


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    """A prompt of its own for each seed."""
    return [(seed * 7919 + position * 31) % 40000 + 100 for position in range(num_tokens)]
