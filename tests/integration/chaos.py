"""A storm for a running system: requests of all kinds, while workers are struck at random."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.integration.running import RunningSystem, wait_until_ready
from tests.reference import ReferenceCase
from twinpool.errors import DeadlineExceeded, TwinpoolError

SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
NUM_CLIENTS = 16
CANCEL_SHARE = 0.2
DEADLINE_SHARE = 0.1
TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Errand:
    """One client's request. deadline_s: None for none. leaves_after: chunks after which the client leaves."""

    case: ReferenceCase
    num_tokens: int
    deadline_s: float | None
    leaves_after: int | None


@dataclass(slots=True)
class Report:
    """What was done and what came of it."""

    injected: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    num_resumes: int = 0

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        strikes = "\n".join(f"  {strike}" for strike in self.injected)
        return f"{outcomes}; {self.num_resumes} resumes; {len(self.injected)} strikes:\n{strikes}"


def errands(cases: Sequence[ReferenceCase], number: int, seed: int) -> list[Errand]:
    """So many requests of mixed lengths and kinds."""
    chance = random.Random(seed)
    return [
        Errand(
            case=chance.choice(cases),
            num_tokens=chance.randint(1, 24),
            deadline_s=chance.uniform(0.2, 5.0) if chance.random() < DEADLINE_SHARE else None,
            leaves_after=chance.randint(1, 6) if chance.random() < CANCEL_SHARE else None,
        )
        for _ in range(number)
    ]


class Storm:
    """Runs errands while striking workers every interval_s seconds."""

    def __init__(self, system: RunningSystem, interval_s: float, seed: int) -> None:
        self._system = system
        self._interval_s = interval_s
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._started_at = time.monotonic()
        self.report = Report()

    def run(self, todo: Sequence[Errand]) -> Report:
        """Send all errands' clients out, and strike until the last is back."""
        striker = threading.Thread(target=self._strike_on, name="striker")
        striker.start()
        try:
            with ThreadPoolExecutor(NUM_CLIENTS) as clients:
                list(clients.map(self._go, todo))
        finally:
            self._over.set()
            striker.join()
        return self.report

    def _strike_on(self) -> None:
        while not self._over.wait(self._interval_s):
            workers = [worker for worker in self._system.operations.status().workers if worker.pid]
            if not workers:
                continue
            worker, number = self._chance.choice(workers), self._chance.choice(SIGNALS)
            try:
                os.kill(worker.pid, number)
            except ProcessLookupError:
                continue
            at_s = time.monotonic() - self._started_at
            self.report.injected.append(f"{at_s:6.1f} s  {number.name} {worker.id} ({worker.state})")

    def _go(self, errand: Errand) -> None:
        try:
            outcome = self._ask(errand)
        except DeadlineExceeded as error:
            outcome = "deadline" if errand.deadline_s is not None else f"failed: {error}"
        except TwinpoolError as error:
            outcome = f"failed: {type(error).__name__}: {error}"
        with self._lock:
            self.report.outcomes[outcome.partition(":")[0]] += 1
            if outcome.startswith(("failed", "wrong")):
                self.report.wrong.append(f"{errand.case.name}, {errand.num_tokens} tokens: {outcome}")

    def _ask(self, errand: Errand) -> str:
        tokens: list[int] = []
        stream = self._system.client.generate(
            errand.case.prompt_ids,
            max_tokens=errand.num_tokens,
            temperature=0.0,
            ignore_eos=True,
            timeout=errand.deadline_s or TIMEOUT_S,
        )
        for number, chunk in enumerate(stream, 1):
            tokens += chunk.token_ids
            if number == errand.leaves_after:
                stream.close()
                break
            if chunk.summary is not None:
                with self._lock:
                    self.report.num_resumes += chunk.summary.num_resumes
        expected = list(errand.case.output_ids[: errand.num_tokens])
        left = errand.leaves_after is not None and len(tokens) < errand.num_tokens
        if tokens != (expected[: len(tokens)] if left else expected):
            return f"wrong: {tokens} instead of {expected}"
        return "left" if left else "finished"


def seconds_to_replace(system: RunningSystem) -> float:
    """How long it takes from a worker's death until its replacement is ready."""
    victim = system.operations.status().workers[0]
    started = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    while any(worker.incarnation == victim.incarnation for worker in system.operations.status().workers):
        time.sleep(0.02)
    wait_until_ready(system)
    return time.monotonic() - started
