"""What shall go wrong, and where: plans that a test leaves in a folder and workers look up as they work.

    armed/NAME ──a worker meets it, and takes it alone──► reached/NAME (its process id) ──► the action

faults = Faults(folder)
system = start_system(builders=watched_builders(folder))
armed = faults.arm(Point.COPYING, num_tokens=65)      # the attempt is known by its tokens
pid = armed.wait()                                    # the worker stands exactly there
armed.release()
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from router.pools.canary import NUM_TOKENS as CANARY_TOKENS

HOLD_S = 90.0
"""A worker is held no longer, whatever becomes of the test."""
SLEEP_S = 1.0
REACH_S = 60.0
POLL_S = 0.002


class Point(StrEnum):
    """Moments of an attempt, about in their order; the worker that meets each in brackets."""

    RESERVED = "reserved"
    """Its blocks are set aside and the router will hear of it (decode)."""
    RECEIVED = "received"
    """Its prompt has arrived, and the engine does not know of it (prefill)."""
    OFFERED = "offered"
    """`begin` is said (prefill)."""
    BEGIN = "begin"
    """`begin` has arrived and is not answered (decode)."""
    PICKED = "picked"
    """Its prompt has blocks (prefill)."""
    STEP_BEGUN = "step-begun"
    """A chunk of it is about to be computed (prefill)."""
    STEP_DONE = "step-done"
    """A chunk of it has been computed, and nobody knows (prefill)."""
    FIRST_TOKEN = "first-token"
    """Its first token is published, its last blocks are not copied (prefill)."""
    PUSH = "push"
    """A copy is about to start (prefill)."""
    COPYING = "copying"
    """Half the blocks of a copy are there (the writer: prefill with `shm`, decode with `ray`)."""
    COPY_ENDED = "copy-ended"
    """All is copied, and `written` is not said (prefill)."""
    WRITTEN = "written"
    """`written` has arrived, and nothing is done about it (decode)."""
    ADMITTED = "admitted"
    """It is a row of the batch (decode)."""
    TOKEN = "token"
    """A step has drawn a token of it, and nobody knows (decode)."""
    FINISHED = "finished"
    """A step has drawn its last token, and nobody knows (decode)."""
    EVICTED = "evicted"
    """Its row has left the batch and its blocks are not free (decode)."""


class Action(StrEnum):
    """What a worker does at a point."""

    KILL = "kill"
    """Kills itself."""
    STOP = "stop"
    """Stops itself (SIGSTOP)."""
    RAISE = "raise"
    """Has a bug."""
    SLEEP = "sleep"
    """Takes SLEEP_S longer."""
    HOLD = "hold"
    """Stands there until it is released."""


@dataclass(frozen=True, slots=True)
class Plan:
    """num_tokens: prompt and token log of the attempts it is for. nth: which of their passes meets it."""

    point: Point
    action: Action
    num_tokens: int
    nth: int


class Watch:
    """A worker's side: told of each attempt first, then called at each point."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._num_tokens: dict[str, int] = {}
        self._passes: Counter[str] = Counter()

    def expect(self, attempt: str, num_tokens: int) -> None:
        """An attempt of so many tokens is about to be worked on."""
        self._num_tokens[attempt] = num_tokens

    def __call__(self, point: Point, attempt: str) -> None:
        """An attempt is at a point: suffer what is armed for it."""
        # All are looked at first: while one holds, others count the passes of other attempts.
        paths = sorted((self._folder / "armed").iterdir())
        for name, plan in [(path.name, self._take(path, point, attempt)) for path in paths]:
            if plan is not None:
                self._suffer(name, plan)

    def _take(self, path: Path, point: Point, attempt: str) -> Plan | None:
        """The plan, if it is for this pass and no other worker has taken it."""
        try:
            plan = Plan(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        if plan.point != point or plan.num_tokens != self._num_tokens.get(attempt):
            return None
        with self._lock:
            self._passes[path.name] += 1
            if self._passes[path.name] != plan.nth:
                return None
        try:
            path.rename(self._folder / "taken" / path.name)
        except FileNotFoundError:
            return None
        return plan

    def _suffer(self, name: str, plan: Plan) -> None:
        _write(self._folder / "reached" / name, str(os.getpid()))
        match plan.action:
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Action.RAISE:
                raise RuntimeError("as armed")
            case Action.SLEEP:
                time.sleep(SLEEP_S)
            case Action.HOLD:
                _wait_for(self._folder / "released" / name, HOLD_S)


class Armed:
    """The test's side of one plan."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def wait(self) -> int:
        """Until a worker has met it; the worker's process id."""
        reached = self._folder / "reached" / self._name
        assert _wait_for(reached, REACH_S), f"nothing came to {self._name}"
        return int(reached.read_text())

    def release(self) -> None:
        """Let the worker go on."""
        _write(self._folder / "released" / self._name, "")


class Faults:
    """All plans of one system, in a folder that it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count(1)
        self._armed: list[Armed] = []
        for each in ("armed", "taken", "reached", "released"):
            (folder / each).mkdir(parents=True)

    def arm(self, point: Point, *, num_tokens: int, action: Action = Action.HOLD, nth: int = 1) -> Armed:
        """Plan for the nth time that an attempt of so many tokens (no canary) is at a point of any worker."""
        assert num_tokens > CANARY_TOKENS
        name = f"{next(self._numbers):03}-{point}-{action}"
        _write(self.folder / "armed" / name, json.dumps(asdict(Plan(point, action, num_tokens, nth))))
        armed = Armed(self.folder, name)
        self._armed.append(armed)
        return armed

    def clear(self) -> None:
        """Disarm what nothing came to, and release all."""
        for path in (self.folder / "armed").iterdir():
            path.unlink(missing_ok=True)
        for armed in self._armed:
            armed.release()
        self._armed.clear()


def _write(path: Path, text: str) -> None:
    """Whole or not at all, for whoever looks."""
    draft = path.parent.parent / f"{path.name}.{os.getpid()}.draft"
    draft.write_text(text)
    draft.rename(path)


def _wait_for(path: Path, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
