"""The rows a decode worker steps: pure state, owned by the desk."""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.engine.batch import DecodeRow
from twinpool.kv.reservations import RowReady
from twinpool.sampling.choice import ChoiceState
from twinpool.session.messages import RowToken
from twinpool.types import AttemptId, Token


@dataclass(slots=True)
class Row:
    """One running choice. The newest token of its log is not in the cache yet.

    finished: its last token is made. moved: another decode worker has its cache, and goes on with it.
    """

    attempt: AttemptId
    choice: ChoiceState
    blocks: list[int]
    finished: bool = False
    moved: bool = False

    @classmethod
    def of(cls, ready: RowReady, eos_token_ids: frozenset[int]) -> Row:
        """A row whose cache and admit are both there."""
        admit = ready.admit
        choice = ChoiceState(
            admit.params, admit.choice_index, admit.prompt_ids, list(admit.output_ids), eos_token_ids
        )
        return cls(admit.attempt, choice, list(ready.blocks))

    @property
    def length(self) -> int:
        """Tokens of prompt and log; a step needs room for all of them."""
        return self.choice.length

    @property
    def num_outputs(self) -> int:
        """Tokens of the log."""
        return len(self.choice.output_ids)

    def next_step(self) -> DecodeRow:
        """What the engine computes: the newest token goes into the cache, the one after it is drawn."""
        sample = self.choice.next()
        return DecodeRow(self.choice.output_ids[-1], sample.position - 1, self.blocks, sample)

    def append(self, token: Token) -> RowToken:
        """Take the drawn token into the log."""
        position = self.num_outputs
        reason = self.choice.append(token)
        self.finished = reason is not None
        return RowToken(self.attempt, position, token, reason)


class Batch:
    """All rows by attempt. A row that finished or moved stays, unstepped, until the router evicts it."""

    def __init__(self) -> None:
        self._rows: dict[AttemptId, Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def enter(self, row: Row) -> None:
        """A row is stepped from now on."""
        self._rows[row.attempt] = row

    def leave(self, attempt: AttemptId) -> bool:
        """A row is gone; False if it was not there."""
        return self._rows.pop(attempt, None) is not None

    def attempts(self) -> list[AttemptId]:
        """All rows' attempts."""
        return list(self._rows)

    def blocks(self) -> dict[AttemptId, list[int]]:
        """Each row's blocks, by attempt."""
        return {attempt: row.blocks for attempt, row in self._rows.items()}

    def active(self, most: int) -> list[Row]:
        """Rows to step, oldest first, at most so many."""
        return [row for row in self._rows.values() if not row.finished and not row.moved][:most]

    def row(self, attempt: AttemptId) -> Row | None:
        """A row by its attempt."""
        return self._rows.get(attempt)
