"""What a decode worker does next: which rows are stepped, grow, pause and move. Pure.

    hear (rows enter, rows are evicted) ─► copy a few blocks of rows that move elsewhere ─► a block for each
    row that needs one (a row that gets none pauses) ─► one step of the others ─► say one message

Changes apply at the next boundary between steps, and it never waits for the router. A row that ends (end of
sequence, length) is not stepped again, and keeps its blocks until the router evicts it. Paused rows are
reported every time; if all are, it reports and idles. Rows whose step failed alone are given up.

The engine's thread owns the batch and its moves. Blocks belong to custody (`decode_worker.custody`), which
answers reservations on the session's thread while a step runs: it has the lock, and this has none. What the
desk wants of it are words (`RowLeft`, `Paused`, `TokensDrawn`, `Books`) and errands (`Grow`); what it lets in
comes as messages (`RowReady`, `Evict`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from decode_worker.batch import Batch, Row
from decode_worker.moves import Moves
from twinpool.engine.apart import Failed
from twinpool.engine.batch import DecodeRow
from twinpool.kv.blocks import MOVE_BLOCKS_PER_STEP
from twinpool.kv.reservations import RowReady
from twinpool.session.messages import Audit, MoveFailed, MoveRow, ReleaseReason, RowMoved, RowToken
from twinpool.transfer.words import HandoffWord, PairWord
from twinpool.types import AttemptId
from twinpool.worker.turn import Copy, CopyEnd, Stepped, Turn


@dataclass(frozen=True, slots=True)
class Evict:
    """The router wants a row no more."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Grow:
    """Take one more block for a row."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Grown:
    """block: the row's next one; None where none is free."""

    attempt: AttemptId
    block: int | None


@dataclass(frozen=True, slots=True)
class RowLeft:
    """A row has left the batch: its blocks are not needed any more."""

    attempt: AttemptId
    reason: ReleaseReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Paused:
    """Rows that are not stepped now for want of a block."""

    attempts: tuple[AttemptId, ...]


@dataclass(frozen=True, slots=True)
class TokensDrawn:
    """What a step has added to the rows' logs. step: counted from 1."""

    step: int
    tokens: tuple[RowToken, ...]
    step_s: float


@dataclass(frozen=True, slots=True)
class Books:
    """Each row's blocks, for an audit, once num_entered rows have entered and all words before are said."""

    audit_id: str
    batch: Mapping[AttemptId, Sequence[int]]
    num_entered: int


Message = RowReady | Evict | MoveRow | PairWord | CopyEnd | Grown | Audit
Word = HandoffWord | RowMoved | MoveFailed | RowLeft | Paused | TokensDrawn | Books
Errand = Copy | Grow


class DecodeDesk:
    """A `Desk`; see `twinpool.worker.turn`. block_size: tokens that a block holds."""

    def __init__(
        self,
        block_size: int,
        *,
        max_rows: int,
        eos_token_ids: frozenset[int],
        copied_per_step: int = MOVE_BLOCKS_PER_STEP,
    ) -> None:
        self._block_size = block_size
        self._max_rows = max_rows
        self._eos_token_ids = eos_token_ids
        self._batch = Batch()
        self._words: list[Word] = []
        self._moves = Moves(self._batch, block_size, self._say, blocks_per_step=copied_per_step)
        # Since the last step: whether blocks were copied, rows that get no block, audits to answer.
        self._has_copied = False
        self._refused: set[AttemptId] = set()
        self._audits: list[str] = []
        self._num_entered = 0
        self._num_steps = 0

    @property
    def holds_nothing(self) -> bool:
        """Whether there are neither rows nor moves."""
        return not self._batch and not self._moves

    def hear(self, message: Message, now: float) -> None:  # noqa: ARG002 (nothing here hangs on the time)
        """Take in a message; what it is about may be over already."""
        match message:
            case RowReady():
                self._num_entered += 1
                self._batch.enter(Row.of(message, self._eos_token_ids))
            case Evict(attempt):
                self._evict(attempt, ReleaseReason.EVICTED)
            case MoveRow():
                self._moves.add(message)
            case Grown(attempt, block):
                self._grow(attempt, block)
            case Audit(audit_id):
                self._audits.append(audit_id)
            case _:
                self._moves.hear(message)

    def plan(self, now: float) -> Turn[Word, Errand, AttemptId, DecodeRow]:  # noqa: ARG002
        """Decide what is done next: copies, then growth, then a step."""
        self._moves.offer()
        copies = self._moves.copies()
        if copies and not self._has_copied:
            self._has_copied = True
            return Turn(self._take_words(), copies)
        rows = self._batch.active(self._max_rows)
        short = {row.attempt for row in rows if row.length > len(row.blocks) * self._block_size}
        if growth := [Grow(row.attempt) for row in rows if row.attempt in short - self._refused]:
            return Turn(self._take_words(), growth)
        if short:
            self._say(Paused(tuple(row.attempt for row in rows if row.attempt in short)))
        self._has_copied = False
        self._refused.clear()
        step = {row.attempt: row.next_step() for row in rows if row.attempt not in short}
        return Turn(self._take_words(), () if step else copies, step)

    def apply(self, stepped: Stepped[AttemptId, DecodeRow]) -> None:
        """Take the step's tokens into the rows' logs."""
        tokens = []
        for attempt, _, result in stepped:
            row = self._batch.row(attempt)
            if isinstance(result, Failed):
                reason = ReleaseReason.FAILED_ALONE if result.alone else ReleaseReason.FAILED
                self._evict(attempt, reason, type(result.error).__name__)
            elif row is not None and result is not None:
                tokens.append(row.append(result))
        if tokens:
            self._num_steps += 1
            self._say(TokensDrawn(self._num_steps, tuple(tokens), stepped.step_s))

    def _grow(self, attempt: AttemptId, block: int | None) -> None:
        row = self._batch.row(attempt)
        if block is None:
            self._refused.add(attempt)
        elif row is not None:
            row.blocks.append(block)

    def _say(self, word: Word) -> None:
        self._words.append(word)

    def _take_words(self) -> list[Word]:
        """All words, audits last, when everybody knows what was said before."""
        for audit_id in self._audits:
            self._say(Books(audit_id, self._batch.blocks(), self._num_entered))
        self._audits.clear()
        words, self._words = self._words, []
        return words

    def _evict(self, attempt: AttemptId, reason: ReleaseReason, detail: str = "") -> None:
        self._batch.leave(attempt)
        self._moves.row_left(attempt)
        self._say(RowLeft(attempt, reason, detail))
