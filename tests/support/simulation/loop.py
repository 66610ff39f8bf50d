"""A worker's real loop, turned when the test says so, and an invented engine for it to compute with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tests.support.simulation.pairs import NOBODY, Content, Memory
from twinpool.engine.batch import DecodeRow, PrefillChunk, SamplingRow
from twinpool.types import HandoffId, HolderId, Token
from twinpool.worker.inbox import Inbox
from twinpool.worker.loop import Loop, Stop
from twinpool.worker.pulse import Pulse
from twinpool.worker.turn import Desk, Hands

BLOCK_SIZE = 2
Message = TypeVar("Message")
Word = TypeVar("Word")
Errand = TypeVar("Errand")
Holder = TypeVar("Holder", bound=HolderId)
Item = TypeVar("Item")

Model = Callable[[int, int], int]
"""The token at an index in a prompt, known by its first token, and its answer. Raises Poisoned."""


class Poisoned(Exception):
    """Every engine fails to draw this token."""


class SimulatedLoop(Generic[Message, Word, Errand, Holder, Item]):
    """due: whether a turn may do anything; an idle loop's wait ends with the time."""

    def __init__(self, inbox: Inbox[Message | Stop]) -> None:
        self.due = False
        self._inbox = inbox
        self._turn: Callable[[float], bool]

    def drive(
        self,
        desk: Desk[Message, Word, Errand, Holder, Item],
        hands: Hands[Message, Word, Errand, Item],
        pulse: Pulse,
        clock: Callable[[], float],
    ) -> None:
        self._turn = Loop(desk, self._inbox, hands, pulse, clock).turn

    def post(self, message: Message) -> None:
        self._inbox.post(message)
        self.due = True

    def turn(self) -> None:
        self.due = False
        if self._turn(0.0):
            self.due = True


class InventedEngine:
    """Reads and writes what blocks hold, and checks that what it reads is whole and one prompt's.

    fails_next: the next item that it computes makes it fail.
    """

    def __init__(self, memory: Memory, model: Model) -> None:
        self.fails_next = False
        self._memory = memory
        self._model = model

    def prefill(self, chunks: Sequence[PrefillChunk]) -> list[Token | None]:
        self._fail_if_told(len(chunks))
        tokens = [self._draw(self._prompt_of(chunk), chunk.sample) for chunk in chunks]
        for chunk in chunks:
            self._read_chunk(chunk)
        return tokens

    def decode(self, rows: Sequence[DecodeRow]) -> list[Token]:
        self._fail_if_told(len(rows))
        prompts = [self._memory[row.block_table[0]].prompt for row in rows]
        tokens = [
            Token(self._model(prompt, row.sample.position)) for prompt, row in zip(prompts, rows, strict=True)
        ]
        for row in rows:
            self._step_row(row)
        return tokens

    def _fail_if_told(self, num_items: int) -> None:
        if self.fails_next and num_items:
            # Until the item that is to blame is computed alone.
            self.fails_next = num_items > 1
            raise RuntimeError("as told")

    def _prompt_of(self, chunk: PrefillChunk) -> int:
        return self._memory[chunk.block_table[0]].prompt if chunk.start else chunk.token_ids[0]

    def _draw(self, prompt: int, sample: SamplingRow | None) -> Token | None:
        return None if sample is None else Token(self._model(prompt, sample.position))

    def _read_chunk(self, chunk: PrefillChunk) -> None:
        prompt = self._prompt_of(chunk)
        if chunk.start:
            self._cached(chunk.block_table, chunk.start)
        for index, token in enumerate(chunk.token_ids, chunk.start):
            self._write(chunk.block_table, index, prompt, NOBODY)
            assert token == self._model(prompt, index)
        assert chunk.sample is None or chunk.sample.position == chunk.start + len(chunk.token_ids)

    def _step_row(self, row: DecodeRow) -> None:
        first = self._cached(row.block_table, row.position)
        assert row.token_id == self._model(first.prompt, row.position)
        self._write(row.block_table, row.position, first.prompt, first.handoff)
        assert row.sample.position == row.position + 1

    def _cached(self, table: Sequence[int], num_tokens: int) -> Content:
        """What the first block holds; all of them together hold num_tokens, and no more."""
        first = self._memory[table[0]]
        for start, block in zip(range(0, num_tokens, BLOCK_SIZE), table, strict=False):
            held = min(BLOCK_SIZE, num_tokens - start)
            assert self._memory[block] == Content(first.handoff, first.prompt, start, held)
        return first

    def _write(self, table: Sequence[int], index: int, prompt: int, handoff: HandoffId) -> None:
        block, offset = divmod(index, BLOCK_SIZE)
        self._memory[table[block]] = Content(handoff, prompt, index - offset, offset + 1)
