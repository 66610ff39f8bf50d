"""Empties workers that are to leave, and says when they may.

A prefill worker finishes its prompts. A decode worker's rows are moved while they go on (the staged copy of
Llumnix, OSDI'24):

    Reserve at the target ─► Granted: MoveRow to the source ─► RowMoved: Admit at the target, Drop here

What is still there when the grace period ends is set back, and so resumed elsewhere from its token log.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.scheduling.attempts import Attempts
from router.scheduling.commands import Drained
from router.scheduling.fleet import REJOIN_BACKOFF_S, Fleet, Worker
from router.scheduling.outbox import Outbox
from router.scheduling.phases import Phase, Setback
from router.scheduling.placement import choose_target, reserved_tokens
from router.scheduling.requests import Choice
from twinpool.backoff import backoff_s
from twinpool.kv.blocks import MOVE_BLOCKS_PER_STEP
from twinpool.session import messages as m
from twinpool.types import AttemptId, HolderId, Pool

MOST_MOVES = 4
"""Rows of one worker that move at a time: each is copied between its worker's steps."""
GROWTH_TOKENS = 32
"""Room for what a row writes before its copy begins, beside a token for each step of the copy."""
MOVE_AGAIN_S = 1.0
"""After a row could not be moved."""


@dataclass(slots=True)
class _Link:
    """The connection from a draining decode worker to one that stays; join_at: when to try (again)."""

    joined: bool = False
    join_at: float | None = 0.0
    num_failures: int = 0


@dataclass(frozen=True, slots=True)
class _Arriving:
    """A row that left source_id with so many tokens in its log. Until the next one comes, the last of its
    cache may still be on its way, which the end of the source would cut off.
    """

    source_id: str
    num_tokens: int


class Draining:
    """All workers that are to leave. most_rows: of one decode worker."""

    def __init__(
        self, fleet: Fleet, outbox: Outbox, attempts: Attempts, *, most_rows: int, reservation_ttl_s: float
    ) -> None:
        self._fleet = fleet
        self._outbox = outbox
        self._attempts = attempts
        self._placed = attempts.placed
        self._most_rows = most_rows
        self._ttl_s = reservation_ttl_s
        self._links: dict[tuple[str, str], _Link] = {}
        self._arriving: dict[AttemptId, _Arriving] = {}

    def drain(self, worker: Worker, grace_s: float, now: float) -> None:
        """A worker is to leave; what it still has after grace_s is set back."""
        until = now + grace_s
        worker.drains_until = until if worker.drains_until is None else min(until, worker.drains_until)
        # Nothing moves to it any more.
        for choice in self._placed.moving_to(worker.worker_id):
            self._attempts.drop_move(choice)
        for choice in self._on(worker):
            if choice.phase is Phase.RESERVING:
                self._attempts.set_back(choice, Setback.DRAINED, f"{worker.worker_id} leaves", now)

    def tick(self, now: float) -> None:
        """Go on with every worker that is to leave."""
        for worker in list(self._fleet.workers()):
            if worker.drains_until is None:
                continue
            if now >= worker.drains_until:
                self._set_back(worker, now)
            elif worker.pool is Pool.DECODE:
                self._join(worker, now)
                self._start_moves(worker, now)
            if self._is_empty(worker):
                self._outbox.put(Drained(worker.worker_id, worker.incarnation))

    # What workers say.

    def joined(self, source: Worker, target: str) -> None:
        """A draining worker has a connection to the incarnation `target`."""
        if link := self._links.get((source.incarnation, target)):
            link.joined, link.join_at = True, None

    def broken(self, source: Worker, target: str, now: float) -> None:
        """It has none any more."""
        if link := self._links.get((source.incarnation, target)):
            link.joined, link.join_at = False, now + backoff_s(REJOIN_BACKOFF_S, link.num_failures)
            link.num_failures += 1

    def moved(self, message: m.RowMoved, now: float) -> None:
        """A row's cache is over there, and nobody steps it."""
        choice = self._placed.current(message.attempt, Phase.DECODING)
        if choice is None:
            return
        if choice.move is None or choice.move.handoff != message.to or message.position != len(choice.log):
            # The reservation was lost, or given up, while the last word was on its way.
            self._attempts.set_back(choice, Setback.DRAINED, "its reservation elsewhere is gone", now)
            return
        assert choice.decode_id is not None  # noqa: S101 (it decodes)
        self._arriving[choice.move.attempt] = _Arriving(choice.decode_id, len(choice.log))
        self._attempts.switch(choice)

    def move_failed(self, to: HolderId, now: float, *, target_holds: bool) -> None:
        """A row stays where it is, until it is tried again. to: the hand-off that was to bring it there."""
        if choice := self._placed.moving(to):
            self._give_up_move(choice, now, target_holds=target_holds)

    def give_up_move_to(self, target: Worker, now: float) -> bool:
        """The youngest row that moves to a worker stays where it is, for a while; False if none does."""
        moving = self._placed.moving_to(target.worker_id)
        if moving:
            self._give_up_move(moving[-1], now, target_holds=True)
        return bool(moving)

    def target_lost(self, worker_id: str, *, target_holds: bool) -> None:
        """A decode worker to which rows are moving is gone, or stands still and holds what it was given."""
        for choice in self._placed.moving_to(worker_id):
            self._attempts.drop_move(choice, target_holds=target_holds)

    def worker_left(self, worker: Worker) -> None:
        """Forget a worker's connections, and what has left it."""
        self._links = {ends: link for ends, link in self._links.items() if worker.incarnation not in ends}
        self._arriving = {
            attempt: row for attempt, row in self._arriving.items() if row.source_id != worker.worker_id
        }

    def _give_up_move(self, choice: Choice, now: float, *, target_holds: bool) -> None:
        self._attempts.drop_move(choice, target_holds=target_holds)
        choice.move_again_at = now + MOVE_AGAIN_S

    def _join(self, source: Worker, now: float) -> None:
        for target in self._fleet.staying(Pool.DECODE):
            link = self._links.setdefault((source.incarnation, target.incarnation), _Link())
            if link.join_at is not None and now >= link.join_at:
                link.join_at = None
                join = m.JoinPair(target.incarnation, target.hello.endpoint)
                self._outbox.send(source.worker_id, join)

    def _start_moves(self, source: Worker, now: float) -> None:
        """The oldest first, as far as there is room elsewhere."""
        targets = {
            target
            for (start, target), link in self._links.items()
            if start == source.incarnation and link.joined
        }
        rows = [choice for choice in self._on(source) if choice.phase is Phase.DECODING]
        moving = [choice for choice in rows if choice.move is not None]
        for choice in rows:
            if len(moving) >= MOST_MOVES:
                return
            if choice.move is not None or now < choice.move_again_at:
                continue
            # A few blocks are copied a step, those of earlier moves first, and each step writes a token.
            num_blocks = sum(source.blocks_for(each.num_tokens) for each in (*moving, choice))
            growth = GROWTH_TOKENS + num_blocks // MOVE_BLOCKS_PER_STEP
            num_tokens = min(reserved_tokens(choice) + growth, choice.most_tokens)
            target = choose_target(self._fleet, choice, num_tokens, targets, most_rows=self._most_rows)
            if target is not None:
                self._attempts.reserve_move(choice, target, num_tokens, self._ttl_s)
                moving.append(choice)

    def _set_back(self, worker: Worker, now: float) -> None:
        for choice in [*self._on(worker), *self._arriving_from(worker)]:
            self._attempts.set_back(choice, Setback.DRAINED, f"{worker.worker_id} leaves", now)

    def _is_empty(self, worker: Worker) -> bool:
        if self._on(worker) or self._arriving_from(worker) or worker.charged or worker.leaving:
            return False
        return worker.load.running == worker.load.waiting == worker.load.blocks_quarantined == 0

    def _arriving_from(self, worker: Worker) -> list[Choice]:
        """Requests whose rows have left a worker, and have not been stepped elsewhere yet."""
        rows = [(self._placed.current(attempt), row) for attempt, row in self._arriving.items()]
        return [
            choice
            for choice, row in rows
            if choice is not None and row.source_id == worker.worker_id and len(choice.log) == row.num_tokens
        ]

    def _on(self, worker: Worker) -> list[Choice]:
        """Requests that a worker still works for, the oldest first."""
        past_prefill = (Phase.DECODING,) if worker.pool is Pool.PREFILL else ()
        placed = self._placed.on(worker.worker_id)
        return [choice for choice in placed if choice.phase not in past_prefill]
