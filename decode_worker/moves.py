"""Rows on their way to another decode worker, copied between the steps that they still take. Pure.

A row's life here, while this worker drains:

    offered (begin) ─► accepted: full blocks are copied, a few between any two steps ─► few are left: the rest
        is copied at once, the row is stepped no more, RowMoved out

Full blocks never change, so what is copied stays true while the row goes on (the staged copy of Llumnix,
OSDI'24). Whatever goes wrong before the last word, the row goes on here: MoveFailed out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decode_worker.batch import Batch, Row
from twinpool.kv.blocks import MOVE_BLOCKS_PER_STEP, blocks_for
from twinpool.session.messages import MoveFailed, MoveRow, RowMoved
from twinpool.transfer.words import Accepted, Ended, HandoffWord, PairLost, PairWord
from twinpool.types import AttemptId, HandoffId
from twinpool.worker.handoff import Handoff, State
from twinpool.worker.turn import Copied, Copy, CopyEnd, CopyFailed, CopyStopped

MoveWord = HandoffWord | RowMoved | MoveFailed


@dataclass(slots=True)
class _Move:
    """A row's move, and the hand-off that makes it."""

    command: MoveRow
    handoff: Handoff


class Moves:
    """Part of the desk. say: takes words. blocks_per_step: most that are copied between two steps."""

    def __init__(
        self,
        batch: Batch,
        block_size: int,
        say: Callable[[MoveWord], None],
        *,
        blocks_per_step: int = MOVE_BLOCKS_PER_STEP,
    ) -> None:
        self._batch = batch
        self._block_size = block_size
        self._say = say
        self._blocks_per_step = blocks_per_step
        self._moves: dict[HandoffId, _Move] = {}

    def __len__(self) -> int:
        return len(self._moves)

    def add(self, command: MoveRow) -> None:
        """Move a row to another decode worker."""
        if self._row(command.attempt) is None:
            self._fail(command, "there is no such row")
        else:
            self._moves[command.to] = _Move(command, Handoff(command.decode, command.to))

    def hear(self, message: PairWord | CopyEnd) -> None:
        """A word of a receiver's, or the end of a copy."""
        match message:
            case Accepted(handoff, num_shared):
                if move := self._moves.get(handoff):
                    move.handoff.accept(num_shared)
            case Ended(handoff, ending):
                self._drop(handoff, ending.value)
            case PairLost(decode, reason):
                for to in [to for to, move in self._moves.items() if move.command.decode == decode]:
                    self._drop(to, reason)
            case Copied(copy) | CopyStopped(copy) | CopyFailed(copy):
                if move := self._moves.get(copy.handoff):
                    self._copy_ended(move, message)

    def row_left(self, attempt: AttemptId) -> None:
        """A row is no more; so is its move."""
        for to, move in list(self._moves.items()):
            if move.command.attempt == attempt:
                del self._moves[to]
                self._give_up(move)

    def offer(self) -> None:
        """Offer what has not been offered."""
        for move in self._moves.values():
            for word in move.handoff.begin():
                self._say(word)

    def copies(self) -> list[Copy]:
        """A few blocks, of the longest on the way first.

        The newest token is not in the cache yet; its first step over there puts it in.
        """
        copies = []
        budget = self._blocks_per_step
        for move in self._moves.values():
            row = self._row(move.command.attempt)
            if row is None or budget == 0:
                continue
            num_cached = blocks_for(row.length - 1, self._block_size)
            is_last = num_cached - move.handoff.num_there <= budget
            # Before that, only blocks ahead of the row's last one: they are full.
            end = num_cached if is_last else move.handoff.num_there + budget
            if copy := move.handoff.copy(row.blocks, end, is_last=is_last):
                copies.append(copy)
                budget -= len(copy.blocks)
        return copies

    def _copy_ended(self, move: _Move, end: CopyEnd) -> None:
        match end:
            case Copied(copy):
                move.handoff.num_copied += len(copy.blocks)
                row = self._row(move.command.attempt)
                if copy.is_last and row is not None:
                    row.moved = True
                    del self._moves[copy.handoff]
                    self._say(RowMoved(row.attempt, copy.handoff, row.num_outputs))
            case CopyStopped():
                move.handoff.state = State.OVER
            case CopyFailed(copy, detail):
                self._give_up(move)
                self._drop(copy.handoff, detail)

    def _row(self, attempt: AttemptId) -> Row | None:
        row = self._batch.row(attempt)
        return None if row is None or row.finished else row

    def _give_up(self, move: _Move) -> None:
        for word in move.handoff.give_up():
            self._say(word)

    def _drop(self, to: HandoffId, detail: str) -> None:
        if move := self._moves.pop(to, None):
            self._fail(move.command, detail)

    def _fail(self, command: MoveRow, detail: str) -> None:
        self._say(MoveFailed(command.attempt, command.to, detail))
