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
from pathlib import Path

from tests.support.system.errands import TIMEOUT_S, Errand, Leaving
from tests.support.system.running import READY_S, RunningSystem, all_ready
from twinpool.client.status import WorkerStatus
from twinpool.errors import DeadlineExceeded, TwinpoolError
from twinpool.types import FinishReason

SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
NUM_CLIENTS = 16
FIRST_STRIKE_S = 1.0
PAUSE = 1.5
"""From one strike to the next, times how long it takes after the first until all workers are ready again."""


@dataclass(slots=True)
class Report:
    """What was asked and done, and what came of it. wrong: in words, empty if all is well."""

    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    injected: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    num_resumes: int = 0

    @property
    def cancelled_share(self) -> float:
        """The part of all requests that their clients ended early."""
        return sum(self.outcomes[leaving] for leaving in Leaving) / self.outcomes.total()

    def __str__(self) -> str:
        strikes = "\n".join(f"  {strike}" for strike in self.injected)
        return (
            f"{self.kinds.total()} requests: {_listed(self.kinds)}\n"
            f"outcomes: {_listed(self.outcomes)}; {self.cancelled_share:.0%} cancelled\n"
            f"{self.num_resumes} resumes; {len(self.injected)} strikes:\n{strikes}"
        )


class Storm:
    """Runs errands while striking workers, one after the other."""

    def __init__(self, system: RunningSystem, seed: int) -> None:
        self._system = system
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._started_at = time.monotonic()
        self._struck: list[int] = []
        self.report = Report()

    def run(self, todo: Sequence[Errand]) -> Report:
        """Send all errands' clients out, and strike until the last is back and no process stands stopped."""
        striker = threading.Thread(target=self._strike_on, name="striker")
        striker.start()
        try:
            with ThreadPoolExecutor(NUM_CLIENTS) as clients:
                list(clients.map(self._go, todo))
        finally:
            self._over.set()
            striker.join()
        deadline = time.monotonic() + READY_S
        while any(map(_is_stopped, self._struck)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.report

    def _strike_on(self) -> None:
        """Every kind of strike as often as the others, in any order."""
        pause_s, numbers = FIRST_STRIKE_S, list[signal.Signals]()
        while not self._over.wait(pause_s):
            numbers = numbers or self._chance.sample(SIGNALS, len(SIGNALS))
            victim = self._chance.choice(self._system.operations.status().workers)
            assert victim.pid, victim
            number, struck_at = numbers.pop(), time.monotonic()
            os.kill(victim.pid, number)
            self._struck.append(victim.pid)
            strike = f"{struck_at - self._started_at:6.1f} s  {number.name} {victim.id} ({victim.state})"
            took_s = self._seconds_until_ready(victim, struck_at)
            pause_s = (PAUSE - 1.0) * took_s
            ready = "the last" if self._over.is_set() else f"all ready again after {took_s:.1f} s"
            self.report.injected.append(f"{strike}, {ready}")

    def _seconds_until_ready(self, victim: WorkerStatus, struck_at: float) -> float:
        """Since a strike, until another life has taken the victim's seat and all pairs are proven."""
        while not self._over.wait(0.05):
            status = self._system.operations.status()
            is_gone = all(worker.incarnation != victim.incarnation for worker in status.workers)
            if is_gone and all_ready(self._system, status):
                break
            if time.monotonic() - struck_at > READY_S:
                self.report.wrong.append(f"not ready again within {READY_S:g} s: {status}")
                self._over.set()
        return time.monotonic() - struck_at

    def _go(self, errand: Errand) -> None:
        try:
            outcome, wrong = self._ask(errand)
        except DeadlineExceeded as error:
            outcome, wrong = "deadline", "" if errand.deadline_s is not None else str(error)
        except TwinpoolError as error:
            outcome = wrong = f"{type(error).__name__}: {error}"
        with self._lock:
            self.report.kinds[errand.question.kind] += 1
            self.report.outcomes[outcome] += 1
            if wrong:
                self.report.wrong.append(f"{errand}: {wrong}")

    def _ask(self, errand: Errand) -> tuple[str, str]:
        """How it ended, and what was wrong with that."""
        tokens: list[int] = []
        outcome, finish_reason = "finished", None
        stream = errand.question.ask(self._system, errand.num_tokens, errand.deadline_s or TIMEOUT_S)
        for number, chunk in enumerate(stream, 1):
            tokens += chunk.token_ids
            finish_reason = chunk.finish_reason
            if chunk.summary is not None:
                with self._lock:
                    self.report.num_resumes += chunk.summary.num_resumes
            if errand.leaving and number == errand.reads and finish_reason is None:
                outcome = errand.leaving
                if outcome is Leaving.HANGING_UP:
                    stream.close()
                elif self._system.client.abort(stream.request_id) != {stream.request_id: True}:
                    return outcome, "it was not in flight when its client aborted it"
        wrong = [] if outcome == (errand.leaving or "finished") else [f"it {outcome}"]
        if outcome is Leaving.ABORTING and finish_reason is not FinishReason.ABORT:
            wrong.append(f"it ended with {finish_reason}")
        expected = errand.question.answer[: errand.num_tokens]
        # Who leaves has asked for more than is known, and has read less than that or more.
        known = min(len(tokens), len(expected)) if errand.leaving else errand.num_tokens
        if tuple(tokens[: len(expected)]) != expected[:known]:
            wrong.append(f"{tokens} instead of {expected}")
        if len(tokens) > errand.num_tokens:
            wrong.append(f"{len(tokens)} tokens")
        return outcome, "; ".join(wrong)


def _is_stopped(pid: int) -> bool:
    """Whether a process is there and stands stopped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state == "T"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
