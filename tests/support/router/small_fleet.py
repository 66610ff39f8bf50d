"""A scheduler with a tiny fleet whose every word a test says itself, on a clock that the test moves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from router.scheduling.commands import Emit, Fail, ReplaceWorker, SchedulerSaid, Send
from router.scheduling.events import (
    Arrived,
    PairProven,
    SchedulerEvent,
    Tick,
    WorkerDown,
    WorkerGone,
    WorkerSaid,
    WorkerUp,
)
from router.scheduling.happenings import HandoffEnded, Happening, MoveEnded, SetBack
from router.scheduling.ids import Ids
from router.scheduling.phases import Phase, Setback
from router.scheduling.requests import Choice
from router.scheduling.scheduler import Scheduler, SchedulerLimits
from router.scheduling.values import Output, Request
from twinpool.sampling.params import SamplingParams
from twinpool.session import messages as m
from twinpool.types import AttemptId, FinishReason, HandoffEndpoint, HandoffId, HolderId, Pool, Token

PLACED = [Phase.RESERVING, Phase.PREFILLING, Phase.HANDING_OFF, Phase.DECODING]

BLOCK_SIZE = 4
LIMITS = SchedulerLimits(
    most_prompts=4,
    most_rows=8,
    overtake_s=1.0,
    reservation_ttl_s=30.0,
    most_attempts=4,
    longest_request_s=3600.0,
    stuck_after_s=5.0,
)
DECIDED = SetBack | HandoffEnded | MoveEnded
"""Happenings that are the scheduler's own decisions."""
PROMPT = (11, 12, 13, 14, 15)


def request(
    request_id: str = "r",
    *,
    max_tokens: int = 4,
    prompt_ids: tuple[int, ...] = PROMPT,
    pair: tuple[str, str] | None = None,
    timeout_s: float | None = None,
    waited_s: float = 0.0,
) -> Request:
    return Request(request_id, prompt_ids, SamplingParams(max_tokens, seed=5), pair, timeout_s, waited_s)


EPOCH = "small"


def attempt(number: int) -> AttemptId:
    """The nth attempt of all."""
    return AttemptId(f"{EPOCH}-a{number}")


def handoff(number: int) -> HandoffId:
    """The nth hand-off of all."""
    return HandoffId(f"{EPOCH}-h{number}")


def number_of(handoff_id: HandoffId) -> int:
    """Which of all hand-offs it is."""
    return int(handoff_id.removeprefix(f"{EPOCH}-h"))


class SmallFleet:
    """The scheduler and what it has last decided.

    prefill and decode: numbers of workers, named p0, p1, … and d0, d1, …; incarnations are p0-1, p0-2, …
    listeners: hear all it says, with the time.
    """

    def __init__(
        self,
        prefill: int = 1,
        decode: int = 1,
        *,
        blocks: int = 16,
        limits: SchedulerLimits = LIMITS,
        joined: bool = True,
    ) -> None:
        self.scheduler = Scheduler(limits, Ids(EPOCH))
        self._admitted: set[AttemptId] = set()
        self.listeners: list[Callable[[SchedulerSaid, float], None]] = []
        self.now = 100.0
        self.blocks = blocks
        self.loads: dict[str, m.LoadReport] = {}
        self._lives: dict[str, int] = {}
        self.feed(Tick())
        for worker_id in (*(f"d{n}" for n in range(decode)), *(f"p{n}" for n in range(prefill))):
            self.comes_up(worker_id)
        if joined:
            for decode_id, prefill_id in itertools.product(range(decode), range(prefill)):
                self.joins(f"p{prefill_id}", f"d{decode_id}")

    def feed(self, event: SchedulerEvent) -> list[SchedulerSaid]:
        """What the scheduler decides on this event now; what it only tells of, listeners hear."""
        all_said = self.scheduler.handle(event, self.now)
        self._admitted |= {each.attempt for each in sent(all_said) if isinstance(each, m.Admit)}
        for said in all_said:
            for hear in self.listeners:
                hear(said, self.now)
        return [said for said in all_said if not isinstance(said, Happening) or isinstance(said, DECIDED)]

    def arrives(self, *requests: Request) -> list[SchedulerSaid]:
        return [command for each in requests for command in self.feed(Arrived(each))]

    def passes(self, seconds: float) -> list[SchedulerSaid]:
        """Time passes, and the scheduler is told."""
        self.now += seconds
        return self.feed(Tick())

    # Workers.

    def incarnation(self, worker_id: str) -> str:
        return f"{worker_id}-{self._lives[worker_id]}"

    def hello(self, worker_id: str) -> m.Hello:
        pool = Pool.PREFILL if worker_id.startswith("p") else Pool.DECODE
        endpoint = HandoffEndpoint(f"socket of {self.incarnation(worker_id)}")
        return m.Hello(pool, self.incarnation(worker_id), 1, self.blocks, BLOCK_SIZE, 1 << 20, endpoint)

    def comes_up(self, worker_id: str) -> list[SchedulerSaid]:
        """A new life of a worker."""
        self._lives[worker_id] = self._lives.get(worker_id, 0) + 1
        self.loads[worker_id] = m.LoadReport(blocks_free=self.blocks)
        return self.feed(WorkerUp(worker_id, self.hello(worker_id)))

    def goes_down(self, worker_id: str) -> list[SchedulerSaid]:
        return self.feed(WorkerDown(worker_id, self.incarnation(worker_id), "the process exited"))

    def has_ended(self, worker_id: str) -> list[SchedulerSaid]:
        """The process of a worker's newest life is known to be gone."""
        return self.feed(WorkerGone(self.hello(worker_id).pool, self.incarnation(worker_id)))

    def says(self, worker_id: str, message: m.Event) -> list[SchedulerSaid]:
        return self.feed(WorkerSaid(worker_id, self.incarnation(worker_id), message))

    def joins(self, prefill_id: str, decode_id: str) -> None:
        """A pair is joined and proven."""
        prefill, decode = self.incarnation(prefill_id), self.incarnation(decode_id)
        self.says(prefill_id, m.PairJoined(decode, "shm"))
        self.feed(PairProven(prefill, decode))

    # One request's words: those of its nth try, which has a hand-off of its own.

    def holder(self, number: int) -> HolderId:
        """Who holds a try's blocks on the decode worker: its attempt, once admitted."""
        return attempt(number) if attempt(number) in self._admitted else handoff(number)

    def grants(self, number: int = 1, worker_id: str = "d0") -> list[SchedulerSaid]:
        return self.says(worker_id, m.Granted(handoff(number), self.loads[worker_id]))

    def refuses(self, number: int = 1, worker_id: str = "d0", *, free: int) -> list[SchedulerSaid]:
        self.loads[worker_id] = m.LoadReport(blocks_free=free)
        return self.says(worker_id, m.Refused(handoff(number), self.loads[worker_id]))

    def reads(
        self,
        token: int = 21,
        reason: FinishReason | None = None,
        *,
        number: int = 1,
        position: int = 0,
        worker_id: str = "p0",
    ) -> list[SchedulerSaid]:
        """A prompt is read: its first token."""
        return self.says(
            worker_id, m.FirstToken(attempt(number), position, Token(token), reason, len(PROMPT))
        )

    def prefill_ends(
        self, outcome: m.PrefillOutcome, number: int = 1, worker_id: str = "p0", detail: str = ""
    ) -> list[SchedulerSaid]:
        return self.says(worker_id, m.PrefillEnded(handoff(number), outcome, detail, self.loads[worker_id]))

    def releases(
        self, reason: m.ReleaseReason, number: int = 1, worker_id: str = "d0", detail: str = ""
    ) -> list[SchedulerSaid]:
        return self.says(worker_id, m.Released(self.holder(number), reason, detail, self.loads[worker_id]))

    def writes(self, number: int = 1, worker_id: str = "d0") -> list[SchedulerSaid]:
        """A cache has come whole."""
        return self.says(worker_id, m.Written(handoff(number), 4096, 0.1))

    def steps(self, *tokens: m.RowToken, worker_id: str = "d0") -> list[SchedulerSaid]:
        return self.says(worker_id, m.StepDone(1, tokens, 0.01, self.loads[worker_id]))

    def pauses(self, *attempts: AttemptId, worker_id: str = "d0") -> list[SchedulerSaid]:
        """Rows found no block."""
        return self.says(worker_id, m.RowsPaused(attempts, self.loads[worker_id]))

    def beats(self, seconds: float, *alive: str, step_s: float = 0.0) -> list[SchedulerSaid]:
        """Time passes in ticks of half a second, while these workers' engines move."""
        commands: list[SchedulerSaid] = []
        for _ in range(round(seconds / 0.5)):
            for worker_id in alive:
                load = self.loads[worker_id]
                self.loads[worker_id] = replace(load, progress=load.progress + 1, step_s=step_s)
                commands += self.says(worker_id, self.loads[worker_id])
            commands += self.passes(0.5)
        return commands

    def decodes(self, name: str, number: int, *, worker_id: str = "d0", prefill_id: str = "p0") -> None:
        """A request arrives and comes into the decode batch, as attempt number so-and-so."""
        self.arrives(request(name, max_tokens=9))
        self.grants(number, worker_id)
        self.reads(number=number, worker_id=prefill_id)
        self.prefill_ends(m.PrefillOutcome.DONE, number, prefill_id)
        self.writes(number, worker_id)
        self.steps(m.RowToken(attempt(number), 1, Token(22), None), worker_id=worker_id)
        assert self.phase(name) is Phase.DECODING

    def brings(self, phase: Phase, *, max_tokens: int = 4, timeout_s: float | None = None) -> None:
        """Request r comes as far as this phase, as the first try, on p0 and d0; its log is then 21, 22."""
        if phase is Phase.QUEUED:
            for pair in self.scheduler.fleet.pairs():
                pair.proven = False
        self.arrives(request(max_tokens=max_tokens, timeout_s=timeout_s))
        if phase in (Phase.PREFILLING, Phase.HANDING_OFF, Phase.DECODING):
            self.grants()
        if phase in (Phase.HANDING_OFF, Phase.DECODING):
            self.reads(21)
        if phase is Phase.DECODING:
            self.writes()
            self.steps(m.RowToken(attempt(1), 1, Token(22), None))
        assert self.phase() is phase

    def phase(self, request_id: str = "r") -> Phase | None:
        """Where a request is; None once the scheduler has forgotten it."""
        return self.choice(request_id).phase if request_id in self.scheduler.requests else None

    def choice(self, request_id: str = "r") -> Choice:
        """A request's one choice."""
        (choice,) = self.scheduler.requests[request_id].choices.values()
        return choice

    @property
    def num_charged(self) -> int:
        """Attempts that are charged to workers."""
        return sum(len(worker.charged) for worker in self.scheduler.fleet.workers())

    def forgot_everything(self) -> bool:
        """Whether the scheduler holds no request and no attempt."""
        scheduler = self.scheduler
        return not scheduler.requests and not scheduler.queue and not scheduler.num_attempts


def sent(commands: Sequence[SchedulerSaid], worker_id: str | None = None) -> list[m.Command]:
    """What a worker, or any worker, is told."""
    return [
        each.command for each in commands if isinstance(each, Send) and worker_id in (None, each.worker_id)
    ]


def emitted(commands: Sequence[SchedulerSaid], request_id: str = "r") -> list[Output]:
    """What goes out to a request's client."""
    return [each.output for each in commands if isinstance(each, Emit) and each.request_id == request_id]


def failures(commands: Sequence[SchedulerSaid]) -> dict[str, Exception]:
    """Requests that end with an error."""
    return {each.request_id: each.error for each in commands if isinstance(each, Fail)}


def reserved(commands: Sequence[SchedulerSaid]) -> list[tuple[str, HandoffId]]:
    """(decode worker, hand-off) of each reservation asked for."""
    return [
        (each.worker_id, each.command.handoff)
        for each in commands
        if isinstance(each, Send) and isinstance(each.command, m.Reserve)
    ]


def setbacks(commands: Sequence[SchedulerSaid]) -> list[tuple[str, Setback, bool]]:
    """(request, why, with tokens) of each attempt that was set back."""
    return [(each.request_id, each.setback, each.resumed) for each in commands if isinstance(each, SetBack)]


def replaced(commands: Sequence[SchedulerSaid]) -> list[str]:
    """Workers that are to be replaced."""
    return [each.worker_id for each in commands if isinstance(each, ReplaceWorker)]
