"""The decode loop without a model: rows take blocks as they grow, and those that get none pause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from decode_worker.custody import Custody
from decode_worker.desk import DecodeDesk, Evict, Message
from decode_worker.hands import DecodeHands
from twinpool.config import HandoffConfig
from twinpool.engine.batch import DecodeRow
from twinpool.engine.runner import Engine
from twinpool.kv.layout import KvLayout
from twinpool.kv.pool import BlockPool, Owner
from twinpool.kv.reservations import RowReady
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import (
    Admit,
    Audit,
    Audited,
    BlockCounts,
    Event,
    Released,
    ReleaseReason,
    Reserve,
    RowsPaused,
    RowToken,
    StepDone,
)
from twinpool.types import AttemptId, HandoffId, Token
from twinpool.worker.courier import Courier
from twinpool.worker.inbox import Inbox
from twinpool.worker.loop import Loop, Stop
from twinpool.worker.pulse import Pulse

LAYOUT = KvLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_size=2, dtype="float32")
WRITER = "p0-1"
MOST_TURNS = 50


class Bench:
    """A loop over so many blocks of two tokens, whose engine draws each position as its token.

    react: told every event; it may put messages into the inbox. stepped: attempts' positions, by step.
    """

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.inbox: Inbox[Message | Stop] = Inbox()
        self.events: list[Event] = []
        self.stepped: list[list[int]] = []
        self.fails_at: set[int] = set()
        self.pulse = Pulse()
        self.custody = Custody(
            self.pool,
            LAYOUT,
            HandoffConfig(),
            self.pulse,
            checksum=lambda block: block,
            enter=self.inbox.post,
            publish=self.publish,
        )
        courier = Courier({}, self.inbox.post)
        hands = DecodeHands(cast("Engine", self), courier, self.custody, self.inbox.post, self.publish)
        desk = DecodeDesk(LAYOUT.block_size, max_rows=8, eos_token_ids=frozenset())
        self.loop = Loop(desk, self.inbox, hands, self.pulse)

    def publish(self, event: Event) -> None:
        self.events.append(event)
        self.react(event)

    def react(self, event: Event) -> None:
        if isinstance(event, RowsPaused) or len(self.events) > MOST_TURNS:
            self.inbox.post(Stop())

    def decode(self, rows: Sequence[DecodeRow]) -> list[Token]:
        """Engine: every row must have a block for the token that goes into the cache."""
        if any(row.position in self.fails_at for row in rows):
            raise RuntimeError("as told")
        for row in rows:
            assert row.position < len(row.block_table) * LAYOUT.block_size
        self.stepped.append([row.position for row in rows])
        return [Token(row.position + 1) for row in rows]

    def write(self, attempt: AttemptId, num_prompt: int) -> None:
        """The cache of a prompt comes in."""
        handoff = HandoffId(f"to {attempt}")
        self.custody.reserve(Reserve(handoff, (attempt,), num_prompt + 1, WRITER, 30.0))
        opened = self.custody.begin(WRITER, handoff)
        assert opened is not None
        self.custody.written(WRITER, handoff, len(opened.blocks), ())

    def admit(self, attempt: AttemptId, num_prompt: int, max_tokens: int) -> None:
        """The row may enter, with one token in its log."""
        handoff = HandoffId(f"to {attempt}")
        self.custody.admit(
            Admit(attempt, handoff, 0, (1,) * num_prompt, (num_prompt,), SamplingParams(max_tokens))
        )
        self.events.clear()

    def tokens(self, attempt: AttemptId) -> list[RowToken]:
        steps = [event for event in self.events if isinstance(event, StepDone)]
        return [token for step in steps for token in step.tokens if token.attempt == attempt]

    def paused(self) -> list[RowsPaused]:
        return [event for event in self.events if isinstance(event, RowsPaused)]


def test_a_row_takes_a_block_when_its_newest_token_needs_one_and_not_before() -> None:
    bench = Bench(8)
    bench.write(AttemptId("a"), num_prompt=2)
    bench.admit(AttemptId("a"), num_prompt=2, max_tokens=6)
    used: list[int] = []

    def react(event: Event) -> None:
        if isinstance(event, StepDone):
            used.append(bench.pool.count(Owner.ROW))
            if event.tokens[0].finish_reason:
                bench.inbox.post(Stop())

    bench.react = react  # type: ignore[method-assign]
    bench.loop.run()
    assert used == [2, 2, 3, 3, 4]
    assert [row.token.id for row in bench.tokens(AttemptId("a"))] == [3, 4, 5, 6, 7]
    assert bench.paused() == []


def test_a_row_without_a_block_pauses_while_the_others_go_on_and_resumes_where_it_was() -> None:
    bench = Bench(4)
    bench.write(AttemptId("a"), num_prompt=2)
    bench.write(AttemptId("b"), num_prompt=3)
    bench.admit(AttemptId("a"), num_prompt=2, max_tokens=3)  # its two blocks hold all it will cache
    bench.admit(AttemptId("b"), num_prompt=3, max_tokens=4)  # needs a third one for its third token

    def react(event: Event) -> None:
        if isinstance(event, RowsPaused) and len(bench.tokens(AttemptId("a"))) == 2:
            bench.inbox.post(Evict(AttemptId("a")))
        if len(bench.tokens(AttemptId("b"))) == 3 or len(bench.events) > MOST_TURNS:
            bench.inbox.post(Stop())

    bench.react = react  # type: ignore[method-assign]
    bench.loop.run()
    assert bench.paused()
    assert {paused.attempts for paused in bench.paused()} == {("b",)}
    assert bench.paused()[0].load.blocks_free == 0
    assert [token.position for token in bench.tokens(AttemptId("a"))] == [1, 2]
    assert [token.position for token in bench.tokens(AttemptId("b"))] == [1, 2, 3]
    assert [row.token.id for row in bench.tokens(AttemptId("b"))] == [4, 5, 6]


def test_if_all_rows_pause_nothing_is_stepped_and_it_is_said() -> None:
    bench = Bench(2)
    bench.write(AttemptId("a"), num_prompt=3)
    bench.admit(AttemptId("a"), num_prompt=3, max_tokens=9)
    bench.loop.run()
    assert bench.stepped == [[3]]
    assert {paused.attempts for paused in bench.paused()} == {("a",)}
    assert bench.pulse.turns >= 2


def test_an_audit_sees_a_row_that_is_on_its_way_into_the_batch() -> None:
    bench = Bench(8)
    bench.write(AttemptId("a"), num_prompt=2)
    bench.inbox.post(Audit("before"))
    bench.admit(AttemptId("a"), num_prompt=2, max_tokens=6)
    bench.inbox.post(Audit("behind"))
    bench.react = lambda event: bench.inbox.post(Stop())  # type: ignore[method-assign]
    bench.loop.run()
    before, behind = (event for event in bench.events if isinstance(event, Audited))
    assert (before.audit_id, behind.audit_id) == ("before", "behind")
    assert before.blocks == behind.blocks == BlockCounts(free=6, rows=2)
    assert [(held.holder, held.stage, held.num_blocks) for held in before.held] == [("a", "admitted", 2)]
    assert before.problems == behind.problems == ()


def test_an_audit_finds_a_row_that_its_reservation_does_not_know() -> None:
    bench = Bench(8)
    bench.write(AttemptId("a"), num_prompt=2)
    bench.admit(AttemptId("a"), num_prompt=2, max_tokens=6)
    (entered,) = bench.inbox.take(0.0)
    assert isinstance(entered, RowReady)
    bench.inbox.post(replace(entered, admit=replace(entered.admit, attempt=AttemptId("ghost"))))
    bench.inbox.post(Audit("audit"))
    bench.inbox.post(Stop())
    bench.loop.run()
    (audited,) = (event for event in bench.events if isinstance(event, Audited))
    assert audited.problems == (
        "attempt a is admitted and no row",
        "attempt ghost is a row and not admitted",
    )


@pytest.mark.parametrize("num_rows", [1, 2])
def test_rows_that_all_fail_are_given_up_and_the_worker_is_not(num_rows: int) -> None:
    bench = Bench(8)
    for attempt in ("a", "b")[:num_rows]:
        bench.write(AttemptId(attempt), num_prompt=2)
        bench.admit(AttemptId(attempt), num_prompt=2, max_tokens=6)
    bench.fails_at = {2}
    bench.react = lambda event: bench.inbox.post(Stop())  # type: ignore[method-assign]
    bench.loop.run()
    assert [type(event) for event in bench.events] == [Released] * num_rows
    for event in bench.events:
        assert isinstance(event, Released)
        # One by itself may be at fault; if several fail, their engine is.
        reason = ReleaseReason.FAILED_ALONE if num_rows == 1 else ReleaseReason.FAILED
        assert (event.reason, event.detail) == (reason, "RuntimeError")
    assert bench.pool.count(Owner.FREE) == 8


def test_a_row_that_makes_the_engine_fail_costs_its_neighbours_no_token() -> None:
    bench = Bench(20)
    for attempt, num_prompt in {"a": 2, "poison": 7, "b": 3}.items():
        bench.write(AttemptId(attempt), num_prompt)
        bench.admit(AttemptId(attempt), num_prompt, max_tokens=6)
    bench.fails_at = {8}  # the poison's second step, when the others are at 3 and 4

    def react(event: Event) -> None:
        lost = isinstance(event, Released) and event.holder != "poison"
        if lost or len(bench.tokens(AttemptId("a"))) == len(bench.tokens(AttemptId("b"))) == 5:
            bench.inbox.post(Stop())

    bench.react = react  # type: ignore[method-assign]
    bench.loop.run()
    assert bench.stepped[:4] == [[2, 7, 3], [3], [4], [4, 5]]
    assert [row.token.id for row in bench.tokens(AttemptId("a"))] == [3, 4, 5, 6, 7]
    assert [row.token.id for row in bench.tokens(AttemptId("b"))] == [4, 5, 6, 7, 8]
    (released,) = [event for event in bench.events if isinstance(event, Released)]
    assert (released.holder, released.reason) == ("poison", ReleaseReason.FAILED_ALONE)
    assert bench.pulse.turns > len(bench.stepped)  # rows that are stepped alone are signs of life, too
