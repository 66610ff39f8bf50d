"""A canary: one small request through one prefill-decode pair, which says where it got stuck."""

from __future__ import annotations

import asyncio
import uuid
from typing import Protocol

from router.dispatch.submission import Sink, Submission
from router.scheduling.values import Ending, Output, Request
from twinpool.errors import TwinpoolError
from twinpool.kv.blocks import leaves_rows_room
from twinpool.sampling.params import SamplingParams
from twinpool.types import Pool, Timing, WorkerState
from twinpool.views import Hop, PairCheck, PairView, Snapshot

NUM_TOKENS = 4


class Dispatcher(Protocol):
    """What a canary needs of the dispatcher."""

    def submit(self, request: Request, sink: Sink) -> Submission:
        """Queue a request for one pair, or raise a typed error."""
        ...

    def snapshot(self) -> Snapshot:
        """The state now."""
        ...


class Canary:
    """Drives canaries through the dispatcher.

    prompt_ids: any valid prompt, so short that every pool holds it. timeout_s: bound of one check.
    """

    def __init__(self, dispatcher: Dispatcher, prompt_ids: tuple[int, ...], timeout_s: float) -> None:
        self._dispatcher = dispatcher
        self._prompt_ids = prompt_ids
        self._timeout_s = timeout_s

    async def check(self, prefill: str, decode: str) -> PairCheck:
        """Test one pair: greedy, past EOS, so that every hop is used whatever the model says."""
        pair = self._pair(prefill, decode)
        if pair is None:
            unjoined = PairView(prefill, decode, transport="", ready=False)
            return PairCheck(unjoined, Hop.PAIR, self._why_unjoined(prefill, decode), Timing())
        flight = _Flight()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._fly(flight, prefill, decode)
        except TimeoutError:
            return PairCheck(pair, self._stuck_at(flight, decode), self._timeout_detail(flight), Timing())
        except TwinpoolError as error:
            return PairCheck(pair, self._stuck_at(flight, decode), error.message, Timing())
        if flight.ending is None or flight.num_tokens != NUM_TOKENS:
            return PairCheck(pair, self._stuck_at(flight, decode), flight.progress, Timing())
        return PairCheck(pair, Hop.NONE, "", flight.ending.timing)

    async def _fly(self, flight: _Flight, prefill: str, decode: str) -> None:
        request = Request(
            request_id=f"canary-{uuid.uuid4().hex}",
            prompt_ids=self._prompt_ids,
            params=SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True),
            pair=(prefill, decode),
        )
        submission = self._dispatcher.submit(request, flight)
        try:
            await flight.landed
        finally:
            submission.leave()

    def _pair(self, prefill: str, decode: str) -> PairView | None:
        """The pair, if it is joined and takes requests."""
        snapshot = self._dispatcher.snapshot()
        leaving = {view.id for view in snapshot.workers if view.state is WorkerState.DRAINING}
        if leaving & {prefill, decode}:
            return None
        pairs = snapshot.pairs
        return next((pair for pair in pairs if (pair.prefill, pair.decode) == (prefill, decode)), None)

    def _why_unjoined(self, prefill: str, decode: str) -> str:
        states = {(view.pool, view.id): view.state for view in self._dispatcher.snapshot().workers}
        for pool, worker in ((Pool.PREFILL, prefill), (Pool.DECODE, decode)):
            state = states.get((pool, worker))
            if state is None:
                return f"there is no {pool} worker {worker}"
            if state in (WorkerState.STARTING, WorkerState.LOST, WorkerState.DRAINING):
                return f"{pool} worker {worker} is {state}"
        return f"{prefill} has no hand-off connection to {decode}"

    def _stuck_at(self, flight: _Flight, decode: str) -> Hop:
        if flight.num_tokens > 1:
            return Hop.DECODE
        if flight.num_tokens == 1:
            return Hop.HANDOFF
        return Hop.RESERVE if self._has_no_room(decode) else Hop.PREFILL

    def _has_no_room(self, decode: str) -> bool:
        """Whether the decode worker refuses so much as a block."""
        views = self._dispatcher.snapshot().workers
        view = next((view for view in views if (view.pool, view.id) == (Pool.DECODE, decode)), None)
        if view is None:
            return False
        return not leaves_rows_room(1, free=view.load.blocks_free, num_rows=view.load.running)

    def _timeout_detail(self, flight: _Flight) -> str:
        return f"{flight.progress} after {self._timeout_s:g} s"


class _Flight:
    """How far one canary has come. landed: done once it has ended; fails with its error."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.ending: Ending | None = None
        self.landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, output: Output, *, last: bool) -> None:
        """Its newest tokens."""
        self.num_tokens += len(output.tokens)
        self.ending = output.ending
        if last and not self.landed.done():
            self.landed.set_result(None)

    def fail(self, error: TwinpoolError) -> None:
        """It did not come back."""
        if not self.landed.done():
            self.landed.set_exception(error)

    @property
    def progress(self) -> str:
        """In words."""
        return f"{self.num_tokens} of {NUM_TOKENS} tokens came"
