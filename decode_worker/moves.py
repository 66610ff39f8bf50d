"""Rows on their way to another decode worker, copied between the steps that they still take.

A row's life here, while this worker drains:

    offered (begin) ─► accepted: full blocks are pushed, a few between any two steps ─► few are left: the rest
        is pushed at once, the row is stepped no more, RowMoved out

Full blocks never change, so what is pushed stays true while the row goes on (the staged copy of Llumnix,
OSDI'24). Whatever goes wrong before the last word, the row goes on here: MoveFailed out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from decode_worker.batch import Batch, Row
from twinpool.kv.blocks import MOVE_BLOCKS_PER_STEP, blocks_for
from twinpool.session.messages import Event, MoveFailed, MoveRow, RowMoved
from twinpool.transfer.port import HandoffSender
from twinpool.transfer.words import Accepted, Ended, PairLost, PairWord

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Move:
    """accepted: the reservation is open. num_pushed: of the row's blocks."""

    command: MoveRow
    sender: HandoffSender
    accepted: bool = False
    num_pushed: int = 0


class Moves:
    """Owned by the engine's thread.

    senders: the open pairs by decode incarnation. blocks_per_step: most that are copied between two steps.
    """

    def __init__(
        self,
        batch: Batch,
        senders: Mapping[str, HandoffSender],
        block_size: int,
        publish: Callable[[Event], None],
        *,
        blocks_per_step: int = MOVE_BLOCKS_PER_STEP,
    ) -> None:
        self._batch = batch
        self._senders = senders
        self._block_size = block_size
        self._publish = publish
        self._blocks_per_step = blocks_per_step
        self._moves: dict[str, _Move] = {}

    def __len__(self) -> int:
        return len(self._moves)

    @property
    def may_advance(self) -> bool:
        """Whether there is anything to copy now."""
        return any(move.accepted for move in self._moves.values())

    def begin(self, command: MoveRow) -> None:
        """Offer a row's cache to another decode worker."""
        sender = self._senders.get(command.decode)
        if sender is None:
            self._fail(command, f"no pair with {command.decode}")
        elif self._row(command.attempt) is None:
            self._fail(command, "there is no such row")
        else:
            self._moves[command.to] = _Move(command, sender)
            sender.begin(command.to)

    def hear(self, word: PairWord) -> None:
        """A word of a receiver's."""
        match word:
            case Accepted(attempt):
                if move := self._moves.get(attempt):
                    move.accepted = True
            case Ended(attempt, ending):
                self._drop(attempt, ending.value)
            case PairLost(decode, reason):
                for to in [to for to, move in self._moves.items() if move.command.decode == decode]:
                    self._drop(to, reason)

    def row_left(self, attempt: str) -> None:
        """A row is no more; so is its move."""
        for to, move in list(self._moves.items()):
            if move.command.attempt == attempt:
                del self._moves[to]
                move.sender.stopped(to)

    def advance(self) -> None:
        """Between two steps: copy a few blocks, the longest on the way first."""
        budget = self._blocks_per_step
        for move in list(self._moves.values()):
            row = self._row(move.command.attempt)
            if not move.accepted or row is None or budget == 0:
                continue
            try:
                budget -= self._push(move, row, budget)
            except Exception as error:
                about = {"attempt": move.command.attempt}
                log.exception("the copy of %s failed", move.command.attempt, extra=about)
                move.sender.stopped(move.command.to)
                self._drop(move.command.to, type(error).__name__)

    def _push(self, move: _Move, row: Row, budget: int) -> int:
        """Blocks pushed. The newest token is not in the cache yet; its first step over there puts it in."""
        num_cached = blocks_for(row.length - 1, self._block_size)
        is_last = num_cached - move.num_pushed <= budget
        # Before that, only blocks ahead of the row's last one: they are full.
        end = num_cached if is_last else move.num_pushed + budget
        blocks = row.blocks[move.num_pushed : end]
        to = move.command.to
        if blocks and not move.sender.push(to, blocks, move.num_pushed):
            return 0  # stopped: the transport has said, or will say, why
        move.num_pushed = end
        if is_last and move.sender.written(to):
            row.moved = True
            del self._moves[to]
            self._publish(RowMoved(row.attempt, to, row.num_outputs))
        return len(blocks)

    def _row(self, attempt: str) -> Row | None:
        row = self._batch.row(attempt)
        return None if row is None or row.finished else row

    def _drop(self, to: str, detail: str) -> None:
        if move := self._moves.pop(to, None):
            self._fail(move.command, detail)

    def _fail(self, command: MoveRow, detail: str) -> None:
        self._publish(MoveFailed(command.attempt, command.to, detail))
