"""Plays the router to a pair of workers: real sessions, commands one by one, and all events kept."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from router.dispatch.worker_session import WorkerSession
from tests.support.workers.running_workers import SECRET, RunningWorkers
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import (
    Admit,
    Command,
    Drop,
    Event,
    FirstToken,
    Granted,
    Hello,
    JoinPair,
    LoadReport,
    MoveFailed,
    PairBroken,
    PairJoined,
    Prefill,
    PrefillEnded,
    QuarantineOverdue,
    Refused,
    Released,
    Reserve,
    RowMoved,
    RowToken,
    StepDone,
    Written,
)
from twinpool.session.messages import Attempt as ReadAttempt
from twinpool.types import AttemptId, HandoffId

WAIT_S = 20.0
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a hand-off of its own."""

    id: AttemptId
    handoff: HandoffId


class DrivenSession:
    """One session with one worker."""

    def __init__(self, address: str, secret: str = SECRET) -> None:
        self.events: list[Event] = []
        self._session = WorkerSession(address, secret)
        self._arrived = asyncio.Event()
        self._running: asyncio.Task[str] | None = None

    async def open(self) -> Hello:
        hello = await self._session.open(WAIT_S)
        self._running = asyncio.create_task(self._session.run(self._hear))
        return hello

    def send(self, *commands: Command) -> None:
        for command in commands:
            self._session.send(command)

    async def event(self, kind: type[E], about: Attempt | None = None, *, skip: int = 0) -> E:
        """The (skip + 1)th event of this kind about this attempt or hand-off, once it is there."""

        def found() -> list[E]:
            return self.events_of(kind, about)[skip:]

        await self._wait(found)
        return found()[0]

    def events_of(self, kind: type[E], about: Attempt | None = None) -> list[E]:
        events = [each for each in self.events if isinstance(each, kind)]
        return [each for each in events if about is None or _named(each) in (about.id, about.handoff)]

    async def reports(self, *, blocks_free: int) -> None:
        """The newest report says so; one comes every second, and after every change."""

        def found() -> bool:
            return any(load.blocks_free == blocks_free for load in self.events_of(LoadReport)[-1:])

        await self._wait(found)

    async def tokens(self, attempt: Attempt, at_least: int) -> tuple[int, ...]:
        """The tokens of one row, once there are so many."""
        await self._wait(lambda: len(self.row_tokens(attempt)) >= at_least)
        return tuple(each.token.id for each in self.row_tokens(attempt))

    def row_tokens(self, attempt: Attempt) -> list[RowToken]:
        return [
            token
            for event in self.events
            if isinstance(event, StepDone)
            for token in event.tokens
            if token.attempt == attempt.id
        ]

    async def end(self) -> str:
        """Wait for the session to end by itself; why it did."""
        assert self._running is not None
        return await asyncio.wait_for(asyncio.shield(self._running), WAIT_S)

    async def close(self) -> None:
        await self._session.close()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def _wait(self, found: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not found():
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise AssertionError(f"not heard; but {self.events}") from None

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._arrived.set()


class RouterDouble:
    """Both sessions, opened and closed with the context, and the pair joined."""

    def __init__(self, workers: RunningWorkers) -> None:
        self.prefill = DrivenSession(workers.prefill_address)
        self.decode = DrivenSession(workers.decode_address)
        self._epoch = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        self.prefill_hello = await self.prefill.open()
        self.decode_hello = await self.decode.open()
        await self.join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.prefill.close()
        await self.decode.close()

    async def join(self) -> PairJoined:
        """Open the pair."""
        before = len(self.prefill.events_of(PairJoined))
        self.prefill.send(JoinPair(self.decode_hello.incarnation, self.decode_hello.endpoint))
        return await self.prefill.event(PairJoined, skip=before)

    async def join_again(self) -> None:
        """Try, as the router does, until the decode worker has seen the end of the older connection."""
        while True:
            before = len(self.prefill.events_of(PairBroken))
            joining = asyncio.create_task(self.join())
            refused = asyncio.create_task(self.prefill.event(PairBroken, skip=before))
            done, waiting = await asyncio.wait([joining, refused], return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            if joining in done:
                return

    def new_attempt(self) -> Attempt:
        number = next(self._numbers)
        return Attempt(AttemptId(f"{self._epoch}-a{number}"), HandoffId(f"{self._epoch}-h{number}"))

    async def reserve(self, attempt: Attempt, num_tokens: int, *, ttl_s: float = 30.0) -> Granted | Refused:
        self.decode.send(
            Reserve(attempt.handoff, (attempt.id,), num_tokens, self.prefill_hello.incarnation, ttl_s)
        )
        answered: Any = Granted | Refused
        answer: Granted | Refused = await self.decode.event(answered, attempt)
        return answer

    def read(
        self,
        attempt: Attempt,
        prompt_ids: tuple[int, ...],
        params: SamplingParams,
        output_ids: tuple[int, ...] = (),
        *,
        hand_off: bool = True,
    ) -> None:
        """Have a prompt prefilled."""
        decode = self.decode_hello.incarnation if hand_off else None
        attempts = (ReadAttempt(attempt.id, 0),)
        self.prefill.send(Prefill(attempt.handoff, attempts, prompt_ids, output_ids, params, decode, place=1))

    def admit(
        self, attempt: Attempt, prompt_ids: tuple[int, ...], params: SamplingParams, log: tuple[int, ...]
    ) -> None:
        self.decode.send(Admit(attempt.id, attempt.handoff, 0, tuple(prompt_ids), log, params))

    async def start(
        self, prompt_ids: tuple[int, ...], max_tokens: int, output_ids: tuple[int, ...] = (), **params: Any
    ) -> tuple[Attempt, int]:
        """All until the row is admitted; the attempt and its first token."""
        attempt, row = self.new_attempt(), greedy(max_tokens, **params)
        assert isinstance(await self.reserve(attempt, len(prompt_ids) + max_tokens), Granted)
        self.read(attempt, prompt_ids, row, output_ids)
        first = await self.prefill.event(FirstToken, attempt)
        self.admit(attempt, prompt_ids, row, (*output_ids, first.token.id))
        return attempt, first.token.id

    async def answer(
        self, prompt_ids: tuple[int, ...], max_tokens: int, output_ids: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """One whole request: its new tokens."""
        attempt, first = await self.start(prompt_ids, max_tokens, output_ids)
        rest = await self.decode.tokens(attempt, max_tokens - len(output_ids) - 1)
        self.decode.send(Drop(attempt.id))
        await self.decode.event(Released, attempt)
        return first, *rest


def _named(event: Event) -> str:
    """The hand-off or the attempt that an event is about, if it is about one."""
    match event:
        case FirstToken(attempt) | RowMoved(attempt) | MoveFailed(attempt):
            return attempt
        case QuarantineOverdue(holder):
            return holder
        case Granted(holder) | Refused(holder) | Written(holder) | PrefillEnded(holder) | Released(holder):
            return holder
        case _:
            return ""


def greedy(max_tokens: int, **params: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **params)
