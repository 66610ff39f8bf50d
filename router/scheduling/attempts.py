"""What happens to choices: attempts begin, tokens are taken into logs, attempts are set back, choices end.

Every change of a choice's phase is made here. A set-back attempt leaves nothing behind: both workers are
told to drop it, and the choice is queued again with its token log, at its request's place.
"""

from __future__ import annotations

from collections.abc import Collection

from router.scheduling.commands import Emit, Fail
from router.scheduling.fleet import Fleet, Worker
from router.scheduling.happenings import (
    HandoffEnded,
    HandoffOutcome,
    Happening,
    MoveEnded,
    MoveOutcome,
    PrefillSent,
    RequestFailed,
    RequestFinished,
    RequestLeft,
    RequestQueued,
    SetBack,
)
from router.scheduling.ids import Ids
from router.scheduling.outbox import Outbox
from router.scheduling.phases import COUNTED, MOST_ROW_FAILURES, Phase, Setback
from router.scheduling.place import Places
from router.scheduling.placed import Placed
from router.scheduling.placement import reserved_tokens
from router.scheduling.requests import Choice, Handoff, Move, RequestState
from router.scheduling.values import Ending, Output, Request
from router.scheduling.waiting import WaitingQueue
from twinpool.errors import InternalError, TwinpoolError, WorkerLost
from twinpool.session import messages as m
from twinpool.types import AttemptId, FinishReason, HandoffId, Pool, ServedBy, Token

Holders = Collection[Pool]
"""Which of an attempt's two workers have still something of it, that they are to be told to drop."""
BOTH: Holders = tuple(Pool)

NUM_CHOICES = 1
"""Of every request."""


class Attempts:
    """All requests and their choices; `placed` has these choices' current attempts.

    most_attempts: failed ones a choice may have.
    """

    def __init__(self, fleet: Fleet, outbox: Outbox, ids: Ids, most_attempts: int) -> None:
        self.queue = WaitingQueue()
        self.requests: dict[str, RequestState] = {}
        self.placed = Placed()
        self._fleet = fleet
        self._outbox = outbox
        self._ids = ids
        self._most_attempts = most_attempts
        self._places = Places()

    def arrive(self, request: Request, longest_s: float, now: float) -> None:
        """A new request, at the end of the queue. Its time counts from before its text was tokenized."""
        arrived_at = now - request.waited_s
        timeout_s = longest_s if request.timeout_s is None else min(request.timeout_s, longest_s)
        state = RequestState(request, self._places.give(), arrived_at, expires_at=arrived_at + timeout_s)
        state.choices = {index: Choice(state, index, arrived_at) for index in range(NUM_CHOICES)}
        self.requests[request.request_id] = state
        for choice in state.choices.values():
            self.queue.add(choice)
        self._tell_of(state, RequestQueued(request.request_id, arrived_at))

    # An attempt's way.

    def reserve(self, choice: Choice, prefill: Worker, decode: Worker, ttl_s: float, now: float) -> None:
        """Begin an attempt, of a hand-off of its own: ask the decode worker for room."""
        handoff = self._place(choice, prefill, decode)
        num_tokens = reserved_tokens(choice)
        decode.charged[handoff.id] = decode.blocks_for(num_tokens)
        reserve = m.Reserve(handoff.id, tuple(handoff.choices), num_tokens, prefill.incarnation, ttl_s)
        self._outbox.send(decode.worker_id, reserve)
        choice.enter(Phase.RESERVING, now)

    def prefill_alone(self, choice: Choice, prefill: Worker, now: float) -> None:
        """Begin an attempt that needs no decode worker."""
        self.prefill(self._place(choice, prefill, None), now)

    def granted(self, handoff: HandoffId, now: float) -> bool:
        """There is room for a hand-off; False if it is no current one that waits for that."""
        held = self.placed.handoff(handoff)
        if held is None or not self.placed.held_by(handoff, Phase.RESERVING):
            return False
        self.prefill(held, now)
        return True

    def prefill(self, handoff: Handoff, now: float) -> None:
        """Have the prompt and the token log read, which are alike for all attempts of a hand-off."""
        first = next(iter(handoff.choices.values()))
        decode = self._fleet.worker(first.decode_id)
        if decode is not None:
            pair = self._fleet.pair(first.prefill_id, decode.worker_id)
            handoff.transport = pair.transport if pair else ""
        command = m.Prefill(
            handoff=handoff.id,
            attempts=tuple(m.Attempt(attempt, choice.index) for attempt, choice in handoff.choices.items()),
            prompt_ids=first.request.prompt_ids,
            output_ids=tuple(first.log),
            params=first.request.params,
            decode=decode.incarnation if decode else None,
            place=first.place,
        )
        self._outbox.send(first.prefill_id, command)
        for attempt, choice in handoff.choices.items():
            sent = PrefillSent(choice.request_id, handoff.id, attempt, choice.prefill_id)
            self._tell_of(choice.of, sent)
            choice.blocked_since = None
            choice.enter(Phase.PREFILLING, now)

    def take_first_token(self, choice: Choice, first: m.FirstToken, now: float) -> None:
        """The attempt's first token: on to the client, and the row into the decode batch."""
        choice.num_resumes += bool(choice.log)
        choice.log.append(first.token.id)
        if first.finish_reason is not None:
            # The prefill worker knows that this was its last.
            self.finish(choice, (first.token,), first.finish_reason, now, held_by=(Pool.DECODE,))
            return
        if choice.decode_id is None:
            self.fail(choice.of, WorkerLost("the prefill worker went past the last token"), now)
            return
        self._emit(choice, (first.token,))
        self._admit(choice)
        choice.enter(Phase.HANDING_OFF, now)

    def take_row_token(self, choice: Choice, row: m.RowToken, now: float) -> None:
        """A decode step's token: on to the client."""
        if choice.phase is Phase.HANDING_OFF:
            choice.enter(Phase.DECODING, now)
        choice.log.append(row.token.id)
        if row.finish_reason is None:
            self._emit(choice, (row.token,))
        else:
            self.finish(choice, (row.token,), row.finish_reason, now)

    def end_handoff(
        self, choice: Choice, outcome: HandoffOutcome, *, num_bytes: int = 0, seconds: float = 0.0
    ) -> None:
        """The cache has come whole, or will not come; nothing if none is under way any more."""
        handoff = choice.handoff
        if handoff is not None and handoff.transport is not None:
            transport, handoff.transport = handoff.transport, None
            self._outbox.put(HandoffEnded(choice.request_id, outcome, transport, num_bytes, seconds))

    # A row's way from one decode worker to another.

    def reserve_move(self, choice: Choice, target: Worker, num_tokens: int, ttl_s: float) -> None:
        """Begin to move a row: ask the other decode worker for room; the row goes on meanwhile."""
        source = self._fleet.worker(choice.decode_id)
        assert source is not None  # noqa: S101 (the row is there)
        move = Move(self._ids.handoff(), self._ids.attempt(), target.worker_id)
        self.placed.moves(choice, move)
        target.charged[move.handoff] = target.blocks_for(num_tokens)
        reserve = m.Reserve(move.handoff, (move.attempt,), num_tokens, source.incarnation, ttl_s)
        self._outbox.send(target.worker_id, reserve)

    def copy(self, choice: Choice) -> None:
        """The room is there: have the row copied."""
        if choice.move is None or choice.move.copying:
            return
        if target := self._fleet.worker(choice.move.decode_id):
            assert choice.decode_id is not None  # noqa: S101 (it decodes)
            choice.move.copying = True
            move = m.MoveRow(choice.attempt, choice.move.handoff, target.incarnation)
            self._outbox.send(choice.decode_id, move)

    def switch(self, choice: Choice) -> None:
        """The copy is whole: the row goes on over there."""
        assert choice.decode_id is not None  # noqa: S101
        old_attempt, old_decode_id = choice.attempt, choice.decode_id
        move = self.placed.moves_no_more(choice)
        self.placed.forget(choice)
        choice.decode_id = move.decode_id
        self.placed.place(choice, move.handoff, move.attempt)
        self._admit(choice)
        self._outbox.send(old_decode_id, m.Drop(old_attempt))
        self._outbox.put(MoveEnded(MoveOutcome.MOVED))

    def drop_move(
        self,
        choice: Choice,
        *,
        target_holds: bool = True,
        outcome: MoveOutcome = MoveOutcome.FAILED,
    ) -> None:
        """The row stays, or is no more. target_holds: whether the other worker has something to drop.

        The source is not told: it hears from the target that the reservation is gone, or has the row dropped.
        Should its last word cross that, the row stands still there, and is set back when `RowMoved` comes.
        """
        if choice.move is None:
            return
        move = self.placed.moves_no_more(choice)
        if target_holds:
            self._outbox.send(move.decode_id, m.Drop(move.handoff))
        if target := self._fleet.worker(move.decode_id):
            target.charged.pop(move.handoff, None)
        self._outbox.put(MoveEnded(outcome))

    def set_back(
        self,
        choice: Choice,
        setback: Setback,
        detail: str,
        now: float,
        *,
        held_by: Holders = BOTH,
        handoff: HandoffOutcome = HandoffOutcome.ENDED,
    ) -> None:
        """The attempt is over and its choice is not: queue it again, or fail it after too many.

        A canary fails at its first failed attempt: it is there to find that. handoff: what this makes of the
        hand-off that is under way, if one is. A choice may have ended meanwhile, with another of its request.
        """
        if choice.phase is Phase.ENDED:
            return
        self.end_handoff(choice, handoff)
        choice.num_failed_attempts += setback in COUNTED
        canary_failed = choice.request.is_canary and setback in COUNTED
        row_failed = setback is Setback.ROW_FAILED and not canary_failed
        at_fault = row_failed and len(choice.row_failed_on) >= MOST_ROW_FAILURES
        if canary_failed or at_fault or choice.num_failed_attempts >= self._most_attempts:
            error = _row_failed(choice.attempt, detail) if row_failed else WorkerLost(detail)
            self._end_choice(choice, now, held_by)
            self.fail(choice.of, error, now)
            return
        self.drop_move(choice)
        self._withdraw(choice, held_by)
        over = self.placed.forget(choice)
        prefill = self._fleet.worker(choice.prefill_id)
        if prefill is not None and over.id in prefill.charged:
            self.placed.awaits_last_word(over)
        # In these phases the client has had tokens of this very attempt.
        resumed = choice.phase in (Phase.HANDING_OFF, Phase.DECODING)
        choice.enter(Phase.QUEUED, now)
        self.queue.add(choice)
        self._outbox.put(SetBack(choice.request_id, setback, resumed))

    def row_failed(self, choice: Choice, attempt: AttemptId, worker_id: str, detail: str, now: float) -> None:
        """An engine failed on an attempt of a choice, and on nothing else: that speaks against the row.

        The current attempt is then to be set back. Others were set back before, if their other worker was
        heard first; of such a one, too, the second failure is the request's end. A canary's is never held
        against it.
        """
        if choice.phase is Phase.ENDED or choice.request.is_canary:
            return
        choice.row_failed_on[attempt] = worker_id
        if choice.attempt != attempt and len(choice.row_failed_on) >= MOST_ROW_FAILURES:
            self.fail(choice.of, _row_failed(attempt, detail), now)

    # A choice's end.

    def finish(
        self,
        choice: Choice,
        tokens: tuple[Token, ...],
        reason: FinishReason,
        now: float,
        *,
        held_by: Holders = BOTH,
    ) -> None:
        """The choice ends well."""
        state = choice.of
        decode_id = choice.decode_id if choice.phase in (Phase.HANDING_OFF, Phase.DECODING) else None
        self._end_choice(choice, now, held_by)
        workers = ServedBy(choice.prefill_id, decode_id)
        ending = Ending(reason, choice.usage, choice.timing(), workers, choice.num_resumes)
        state.endings.append(ending)
        output = Output(choice.index, tokens, ending)
        self._outbox.put(Emit(state.request_id, output, last=not state.choices))
        if not state.choices:
            self._tell_of(state, RequestFinished(state.request_id, state.usage, tuple(state.endings)))

    def cut(self, choice: Choice, position: int, now: float) -> None:
        """The choice ends well, with so many tokens: what its log has beyond them is nobody's."""
        del choice.log[position:]
        self.finish(choice, (), FinishReason.STOP, now)

    def fail(self, state: RequestState, error: TwinpoolError, now: float) -> None:
        """The request ends with an error, and with it all its choices."""
        self._end(state, now)
        self._outbox.put(Fail(state.request_id, error))
        self._tell_of_failure(state, error, now)

    def leave(self, state: RequestState, now: float) -> None:
        """The request's client has left, and hears no more. It watches the same deadline as we do, and may
        act on it before we have.
        """
        error = state.expiry(now)
        self._end(state, now)
        if error is not None:
            self._tell_of_failure(state, error, now)
        else:
            self._tell_of(state, RequestLeft(state.request_id, state.usage, now - state.arrived_at))

    def abort(self, state: RequestState, now: float) -> None:
        """All choices of the request end well, as they are."""
        for choice in list(state.choices.values()):
            self.finish(choice, (), FinishReason.ABORT, now)

    def _end(self, state: RequestState, now: float) -> None:
        """Forget a request, and have its workers drop what they hold of it."""
        for choice in list(state.choices.values()):
            self._end_choice(choice, now, BOTH)

    def _end_choice(self, choice: Choice, now: float, held_by: Holders) -> None:
        """Forget a choice, and its request with the last one."""
        if choice.phase is Phase.QUEUED:
            self.queue.remove(choice)
        else:
            self.end_handoff(choice, HandoffOutcome.ENDED)
            self.drop_move(choice, outcome=MoveOutcome.ENDED)
            self._withdraw(choice, held_by)
            self.placed.forget(choice)
        choice.enter(Phase.ENDED, now)
        choice.of.num_ended_tokens += choice.usage.completion_tokens
        del choice.of.choices[choice.index]
        if not choice.of.choices:
            del self.requests[choice.request_id]

    def _admit(self, choice: Choice) -> None:
        request, handoff = choice.request, choice.handoff
        assert choice.decode_id is not None  # noqa: S101 (whoever admits has looked)
        assert handoff is not None  # noqa: S101
        log = tuple(choice.log)
        admit = m.Admit(choice.attempt, handoff.id, choice.index, request.prompt_ids, log, request.params)
        self._outbox.send(choice.decode_id, admit)

    def _place(self, choice: Choice, prefill: Worker, decode: Worker | None) -> Handoff:
        self.queue.remove(choice)
        choice.prefill_id = prefill.worker_id
        choice.decode_id = decode.worker_id if decode else None
        handoff = self.placed.place(choice, self._ids.handoff(), self._ids.attempt())
        prefill.charged[handoff.id] = prefill.blocks_for(choice.num_tokens)
        return handoff

    def _withdraw(self, choice: Choice, held_by: Holders) -> None:
        assert choice.handoff is not None  # noqa: S101 (it has an attempt)
        if Pool.PREFILL in held_by:
            if choice.phase is Phase.RESERVING:
                # The prefill worker was never told of the hand-off, so it will not report its end.
                if prefill := self._fleet.worker(choice.prefill_id):
                    prefill.charged.pop(choice.handoff.id, None)
            elif choice.phase in (Phase.PREFILLING, Phase.HANDING_OFF):
                self._outbox.send(choice.prefill_id, m.CancelPrefill(choice.handoff.id))
        if Pool.DECODE in held_by and choice.decode_id is not None:
            self._outbox.send(choice.decode_id, m.Drop(choice.holder))

    def _tell_of_failure(self, state: RequestState, error: TwinpoolError, now: float) -> None:
        seconds = now - state.arrived_at
        self._tell_of(state, RequestFailed(state.request_id, state.usage, seconds, error))

    def _tell_of(self, state: RequestState, happening: Happening) -> None:
        """Say what happens to a request, if it is a user's."""
        if not state.request.is_canary:
            self._outbox.put(happening)

    def _emit(self, choice: Choice, tokens: tuple[Token, ...]) -> None:
        self._outbox.put(Emit(choice.request_id, Output(choice.index, tokens)))


def _row_failed(attempt: AttemptId, detail: str) -> InternalError:
    """What is told of a row on which engines fail; to send it again would be no use."""
    return InternalError(f"attempt {attempt} made an engine fail, alone: {detail}")
