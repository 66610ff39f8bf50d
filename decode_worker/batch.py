"""The rows a decode worker steps: pure state, owned by the desk."""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.engine.batch import DecodeRow, SamplingRow
from twinpool.kv.reservations import RowReady
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import RowToken
from twinpool.types import finish_reason


@dataclass(slots=True)
class Row:
    """One running choice. num_outputs counts the token log; newest, its last, is not in the cache yet.

    finished: its last token is made. moved: another decode worker has its cache, and goes on with it.
    """

    attempt: str
    choice_index: int
    params: SamplingParams
    blocks: list[int]
    num_prompt_tokens: int
    num_outputs: int
    newest: int
    finished: bool = False
    moved: bool = False

    @classmethod
    def of(cls, ready: RowReady) -> Row:
        """A row whose cache and admit are both there."""
        admit = ready.admit
        return cls(
            attempt=admit.attempt,
            choice_index=admit.choice_index,
            params=admit.params,
            blocks=list(ready.blocks),
            num_prompt_tokens=admit.num_prompt_tokens,
            num_outputs=len(admit.output_ids),
            newest=admit.output_ids[-1],
        )

    @property
    def length(self) -> int:
        """Tokens of prompt and log; a step needs room for all of them."""
        return self.num_prompt_tokens + self.num_outputs

    def next_step(self) -> DecodeRow:
        """What the engine computes: the newest token goes into the cache, the one after it is drawn."""
        length = self.length
        sample = SamplingRow(self.params, self.choice_index, position=length)
        return DecodeRow(self.newest, length - 1, self.blocks, sample)

    def append(self, token: int, eos_token_ids: frozenset[int]) -> RowToken:
        """Take the drawn token into the log."""
        reason = finish_reason(token, self.num_outputs + 1, self.params, eos_token_ids)
        row_token = RowToken(self.attempt, self.num_outputs, token, reason)
        self.num_outputs += 1
        self.newest = token
        self.finished = reason is not None
        return row_token


class Batch:
    """All rows by attempt. A row that finished or moved stays, unstepped, until the router evicts it."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def enter(self, row: Row) -> None:
        """A row is stepped from now on."""
        self._rows[row.attempt] = row

    def leave(self, attempt: str) -> bool:
        """A row is gone; False if it was not there."""
        return self._rows.pop(attempt, None) is not None

    def attempts(self) -> list[str]:
        """All rows' attempts."""
        return list(self._rows)

    def blocks(self) -> dict[str, list[int]]:
        """Each row's blocks, by attempt."""
        return {attempt: row.blocks for attempt, row in self._rows.items()}

    def active(self, most: int) -> list[Row]:
        """Rows to step, oldest first, at most so many."""
        return [row for row in self._rows.values() if not row.finished and not row.moved][:most]

    def row(self, attempt: str) -> Row | None:
        """A row by its attempt."""
        return self._rows.get(attempt)
