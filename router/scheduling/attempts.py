"""What happens to requests: attempts begin, tokens are taken into logs, attempts are set back, choices end.

Every change of a request's phase is made here. A set-back attempt leaves nothing behind: both workers are
told to drop it, and the request is queued again with its token log, at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from router.scheduling.commands import (
    Emit,
    Fail,
    HandoffEnded,
    HandoffOutcome,
    MoveEnded,
    MoveOutcome,
    SetBack,
)
from router.scheduling.fleet import Fleet, Worker
from router.scheduling.outbox import Outbox
from router.scheduling.place import Places
from router.scheduling.placement import reserved_tokens
from router.scheduling.requests import COUNTED, Handoff, Move, Phase, RequestState, Setback
from router.scheduling.values import Ending, Output, Request
from router.scheduling.waiting import WaitingQueue
from twinpool.errors import TwinpoolError, WorkerLost
from twinpool.session import messages as m
from twinpool.types import FinishReason, Pool, ServedBy

Holders = Collection[Pool]
"""Which of an attempt's two workers have still something of it, that they are to be told to drop."""
BOTH: Holders = tuple(Pool)


class Attempts:
    """All requests and their current attempts.

    new_attempt: draws an id that is unique for all time. most_attempts: failed ones a request may have.
    """

    def __init__(
        self, fleet: Fleet, outbox: Outbox, new_attempt: Callable[[], str], most_attempts: int
    ) -> None:
        self.queue = WaitingQueue()
        self.requests: dict[str, RequestState] = {}
        self._fleet = fleet
        self._outbox = outbox
        self._new_attempt = new_attempt
        self._most_attempts = most_attempts
        self._current: dict[str, RequestState] = {}
        self._moving: dict[str, RequestState] = {}
        self._places = Places()

    def __len__(self) -> int:
        return len(self._current)

    def current(self, attempt: str, *phases: Phase) -> RequestState | None:
        """The request whose current attempt this is, if it is in one of the phases (none given: in any)."""
        state = self._current.get(attempt)
        return state if state is not None and (not phases or state.phase in phases) else None

    def moving(self, attempt: str) -> RequestState | None:
        """The request whose row is moving to this attempt."""
        return self._moving.get(attempt)

    def moving_to(self, worker_id: str) -> list[RequestState]:
        """Requests whose rows are moving to a worker, the oldest first."""
        states = self._moving.values()
        moving = [state for state in states if state.move and state.move.decode_id == worker_id]
        return sorted(moving, key=lambda state: state.place)

    def placed_on(self, worker_id: str) -> list[RequestState]:
        """Requests whose current attempt uses a worker, the oldest first."""
        states = self._current.values()
        placed = [state for state in states if worker_id in (state.prefill_id, state.decode_id)]
        return sorted(placed, key=lambda state: state.place)

    def arrive(self, request: Request, longest_s: float, now: float) -> None:
        """A new request, at the end of the queue. Its time counts from before its text was tokenized."""
        arrived_at = now - request.waited_s
        timeout_s = longest_s if request.timeout_s is None else min(request.timeout_s, longest_s)
        state = RequestState(request, self._places.give(), arrived_at, expires_at=arrived_at + timeout_s)
        self.requests[request.request_id] = state
        self.queue.add(state)

    # An attempt's way.

    def reserve(self, state: RequestState, prefill: Worker, decode: Worker, ttl_s: float, now: float) -> None:
        """Begin an attempt: ask the decode worker for room."""
        self._begin(state, prefill, decode)
        num_tokens = reserved_tokens(state)
        decode.charged[state.attempt] = decode.blocks_for(num_tokens)
        reserve = m.Reserve(state.attempt, num_tokens, prefill.incarnation, ttl_s)
        self._outbox.send(decode.worker_id, reserve)
        state.enter(Phase.RESERVING, now)

    def prefill_alone(self, state: RequestState, prefill: Worker, now: float) -> None:
        """Begin an attempt that needs no decode worker."""
        self._begin(state, prefill, None)
        self.prefill(state, now)

    def prefill(self, state: RequestState, now: float) -> None:
        """Have the prompt and the token log read."""
        request = state.request
        decode = self._fleet.worker(state.decode_id)
        if decode is not None:
            pair = self._fleet.pair(state.prefill_id, decode.worker_id)
            state.handoff = Handoff(pair.transport if pair else "")
        state.blocked_since = None
        command = m.Prefill(
            attempt=state.attempt,
            choice_index=0,
            prompt_ids=request.prompt_ids,
            output_ids=tuple(state.log),
            params=request.params,
            decode=decode.incarnation if decode else None,
            place=state.place,
        )
        self._outbox.send(state.prefill_id, command)
        state.enter(Phase.PREFILLING, now)

    def take_first_token(self, state: RequestState, first: m.FirstToken, now: float) -> None:
        """The attempt's first token: on to the client, and the row into the decode batch."""
        state.num_resumes += bool(state.log)
        state.log.append(first.token)
        if first.finish_reason is not None:
            # The prefill worker knows that this was its last.
            self.finish(state, (first.token,), first.finish_reason, now, held_by=(Pool.DECODE,))
            return
        if state.decode_id is None:
            self.fail(state, WorkerLost("the prefill worker went past the last token"), now)
            return
        self._emit(state, (first.token,))
        self._admit(state)
        state.enter(Phase.HANDING_OFF, now)

    def take_row_token(self, state: RequestState, row: m.RowToken, now: float) -> None:
        """A decode step's token: on to the client."""
        if state.phase is Phase.HANDING_OFF:
            state.enter(Phase.DECODING, now)
        state.log.append(row.token)
        if row.finish_reason is None:
            self._emit(state, (row.token,))
        else:
            self.finish(state, (row.token,), row.finish_reason, now)

    def end_handoff(
        self, state: RequestState, outcome: HandoffOutcome, *, num_bytes: int = 0, seconds: float = 0.0
    ) -> None:
        """The cache has come whole, or will not come; nothing if no hand-off is under way any more."""
        if state.handoff is not None:
            transport, state.handoff = state.handoff.transport, None
            self._outbox.put(HandoffEnded(state.request_id, outcome, transport, num_bytes, seconds))

    # A row's way from one decode worker to another.

    def reserve_move(self, state: RequestState, target: Worker, num_tokens: int, ttl_s: float) -> None:
        """Begin to move a row: ask the other decode worker for room; the row goes on meanwhile."""
        source = self._fleet.worker(state.decode_id)
        assert source is not None  # noqa: S101 (the row is there)
        state.move = Move(self._new_attempt(), target.worker_id)
        self._moving[state.move.attempt] = state
        target.charged[state.move.attempt] = target.blocks_for(num_tokens)
        reserve = m.Reserve(state.move.attempt, num_tokens, source.incarnation, ttl_s)
        self._outbox.send(target.worker_id, reserve)

    def copy(self, state: RequestState) -> None:
        """The room is there: have the row copied."""
        if state.move is None or state.move.copying:
            return
        if target := self._fleet.worker(state.move.decode_id):
            assert state.decode_id is not None  # noqa: S101 (it decodes)
            state.move.copying = True
            move = m.MoveRow(state.attempt, state.move.attempt, target.incarnation)
            self._outbox.send(state.decode_id, move)

    def switch(self, state: RequestState) -> None:
        """The copy is whole: the row goes on over there."""
        assert state.move is not None  # noqa: S101
        assert state.decode_id is not None  # noqa: S101
        move, old_attempt, old_decode_id = state.move, state.attempt, state.decode_id
        del self._moving[move.attempt], self._current[old_attempt]
        state.move, state.attempt, state.decode_id = None, move.attempt, move.decode_id
        self._current[state.attempt] = state
        self._admit(state)
        self._outbox.send(old_decode_id, m.Drop(old_attempt))
        self._outbox.put(MoveEnded(MoveOutcome.MOVED))

    def drop_move(
        self,
        state: RequestState,
        *,
        target_holds: bool = True,
        outcome: MoveOutcome = MoveOutcome.FAILED,
    ) -> None:
        """The row stays, or is no more. target_holds: whether the other worker has something to drop.

        The source is not told: it hears from the target that the reservation is gone, or has the row dropped.
        Should its last word cross that, the row stands still there, and is set back when `RowMoved` comes.
        """
        if state.move is None:
            return
        del self._moving[state.move.attempt]
        if target_holds:
            self._outbox.send(state.move.decode_id, m.Drop(state.move.attempt))
        if target := self._fleet.worker(state.move.decode_id):
            target.charged.pop(state.move.attempt, None)
        state.move = None
        self._outbox.put(MoveEnded(outcome))

    def set_back(
        self,
        state: RequestState,
        setback: Setback,
        detail: str,
        now: float,
        *,
        held_by: Holders = BOTH,
        handoff: HandoffOutcome = HandoffOutcome.ENDED,
    ) -> None:
        """The attempt is over and its choice is not: queue it again, or fail it after too many.

        A canary fails at its first failed attempt: it is there to find that. handoff: what this makes of the
        hand-off that is under way, if one is.
        """
        self.end_handoff(state, handoff)
        state.num_failed_attempts += setback in COUNTED
        canary_failed = state.request.pair is not None and setback in COUNTED
        if canary_failed or state.num_failed_attempts >= self._most_attempts:
            self.fail(state, WorkerLost(detail), now, held_by=held_by)
            return
        self.drop_move(state)
        self._withdraw(state, held_by)
        del self._current[state.attempt]
        state.attempt = ""
        # In these phases the client has had tokens of this very attempt.
        resumed = state.phase in (Phase.HANDING_OFF, Phase.DECODING)
        state.enter(Phase.QUEUED, now)
        self.queue.add(state)
        self._outbox.put(SetBack(state.request_id, setback, resumed))

    # A choice's end.

    def finish(
        self,
        state: RequestState,
        tokens: tuple[int, ...],
        reason: FinishReason,
        now: float,
        *,
        held_by: Holders = BOTH,
    ) -> None:
        """The choice ends well."""
        decode_id = state.decode_id if state.phase in (Phase.HANDING_OFF, Phase.DECODING) else None
        self.end(state, now, held_by=held_by)
        workers = ServedBy(state.prefill_id, decode_id)
        ending = Ending(reason, state.timing(), workers, state.num_resumes)
        self._outbox.put(Emit(state.request_id, Output(0, tokens, ending)))

    def fail(self, state: RequestState, error: TwinpoolError, now: float, *, held_by: Holders = BOTH) -> None:
        """The request ends with an error."""
        self.end(state, now, held_by=held_by)
        self._outbox.put(Fail(state.request_id, error))

    def end(self, state: RequestState, now: float, *, held_by: Holders = BOTH) -> None:
        """Forget a request, and have its workers drop what they hold of it."""
        if state.phase is Phase.QUEUED:
            self.queue.remove(state)
        else:
            self.end_handoff(state, HandoffOutcome.ENDED)
            self.drop_move(state, outcome=MoveOutcome.ENDED)
            self._withdraw(state, held_by)
            del self._current[state.attempt]
        state.enter(Phase.ENDED, now)
        del self.requests[state.request_id]

    def _admit(self, state: RequestState) -> None:
        request = state.request
        assert state.decode_id is not None  # noqa: S101 (whoever admits has looked)
        admit = m.Admit(state.attempt, 0, len(request.prompt_ids), tuple(state.log), request.params)
        self._outbox.send(state.decode_id, admit)

    def _begin(self, state: RequestState, prefill: Worker, decode: Worker | None) -> None:
        self.queue.remove(state)
        state.attempt = self._new_attempt()
        state.prefill_id = prefill.worker_id
        state.decode_id = decode.worker_id if decode else None
        self._current[state.attempt] = state
        prefill.charged[state.attempt] = prefill.blocks_for(state.num_tokens)

    def _withdraw(self, state: RequestState, held_by: Holders) -> None:
        if Pool.PREFILL in held_by:
            if state.phase is Phase.RESERVING:
                # The prefill worker was never told of the attempt, so it will not report its end.
                if prefill := self._fleet.worker(state.prefill_id):
                    prefill.charged.pop(state.attempt, None)
            elif state.phase in (Phase.PREFILLING, Phase.HANDING_OFF):
                self._outbox.send(state.prefill_id, m.CancelPrefill(state.attempt))
        if Pool.DECODE in held_by and state.decode_id is not None:
            self._outbox.send(state.decode_id, m.Drop(state.attempt))

    def _emit(self, state: RequestState, tokens: tuple[int, ...]) -> None:
        self._outbox.put(Emit(state.request_id, Output(0, tokens)))
