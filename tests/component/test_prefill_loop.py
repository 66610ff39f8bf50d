"""The prefill loop without a model: prompts keep reservations and places, and fail none but themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from decode_worker.custody import Custody
from prefill_worker.desk import Message, PrefillDesk, PrefillLimits, Word
from prefill_worker.hands import PrefillHands
from twinpool.config import HandoffConfig
from twinpool.engine.batch import PrefillChunk
from twinpool.engine.runner import Engine
from twinpool.kv.layout import KvLayout
from twinpool.kv.pool import BlockPool
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import (
    Attempt,
    Event,
    FirstToken,
    Prefill,
    PrefillEnded,
    PrefillOutcome,
    Reserve,
    Written,
)
from twinpool.transfer.words import Accepted, Ended, Ending
from twinpool.types import AttemptId, HandoffId, Token
from twinpool.worker.courier import Courier
from twinpool.worker.inbox import Inbox
from twinpool.worker.loop import Loop, Stop
from twinpool.worker.pulse import Pulse
from twinpool.worker.turn import Copy

LAYOUT = KvLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_size=2, dtype="float32")
WRITER, DECODE = "p0-1", "d0-1"
HANDOFF = HandoffConfig()
TOKEN_S = 1.0
"""What the engine takes for each token."""
BUDGET_TOKENS = 4
NUM_TOKENS = 10
"""Of each prompt."""


class DirectSender:
    """A sender whose words reach a decode worker's custody at once."""

    transport = "direct"

    def __init__(self, custody: Custody, inbox: Inbox[Message | Stop]) -> None:
        self._custody = custody
        self._inbox = inbox
        self._num_pushed: dict[str, int] = {}

    def begin(self, handoff: HandoffId) -> None:
        opened = self._custody.begin(WRITER, handoff)
        refused = Ended(handoff, Ending.REFUSED)
        self._inbox.post(Accepted(handoff, opened.num_shared) if opened else refused)
        self._num_pushed[handoff] = 0

    def push(self, handoff: HandoffId, source_blocks: Sequence[int], first: int) -> bool:
        self._num_pushed[handoff] += len(source_blocks)
        self._custody.progress(WRITER, handoff)
        return True

    def renew(self, handoff: HandoffId) -> None:
        self._custody.progress(WRITER, handoff)

    def written(self, handoff: HandoffId) -> bool:
        self._custody.written(WRITER, handoff, self._num_pushed[handoff], ())
        return True

    def stopped(self, handoff: HandoffId) -> None:
        self._custody.stopped(WRITER, handoff)

    def close(self) -> None:
        raise NotImplementedError


class Bench:
    """A loop over so many blocks of two tokens, and the custody of a decode worker that it hands off to.

    now: on the clock of both, which runs only while the engine computes. It draws each prompt's first id.
    poison: an id at which it fails.
    """

    def __init__(self, num_blocks: int = 100) -> None:
        self.now = 0.0
        self.poison = 0
        self.inbox: Inbox[Message | Stop] = Inbox()
        self.events: list[Event] = []
        self._num_running = 0
        self.custody = Custody(
            BlockPool(1000),
            LAYOUT,
            HANDOFF,
            Pulse(),
            checksum=lambda block: block,
            enter=lambda row: None,
            publish=self.publish,
            clock=lambda: self.now,
        )
        courier = Courier({DECODE: DirectSender(self.custody, self.inbox)}, self.inbox.post)
        pulse = Pulse()
        limits = PrefillLimits(BUDGET_TOKENS, HANDOFF.reservation_ttl_s, HANDOFF.renewal_s)
        desk = PrefillDesk(BlockPool(num_blocks), LAYOUT.block_size, limits, pulse, eos_token_ids=frozenset())
        hands = PrefillHands(cast("Engine", self), courier, self.publish)
        self.loop: Loop[Message, Word, Copy, HandoffId, PrefillChunk] = Loop(
            desk, self.inbox, hands, pulse, lambda: self.now
        )

    def publish(self, event: Event) -> None:
        self.events.append(event)
        self._num_running -= isinstance(event, PrefillEnded)
        if not self._num_running:
            self.inbox.post(Stop())

    def prefill(self, chunks: Sequence[PrefillChunk]) -> list[Token | None]:
        """Engine."""
        if any(self.poison in chunk.token_ids for chunk in chunks):
            raise RuntimeError("as told")
        self.now += TOKEN_S * sum(len(chunk.token_ids) for chunk in chunks)
        self.custody.expire()
        return [Token(chunk.token_ids[0]) if chunk.sample else None for chunk in chunks]

    def read(self, *places: int) -> None:
        """Have prompts read, each with its place for a name and for all its ids."""
        self._num_running = len(places)
        for place in places:
            handoff, prompt_ids = HandoffId(str(place)), (place,) * NUM_TOKENS
            attempts = (Attempt(AttemptId(f"of {handoff}"), 0),)
            ids = tuple(attempt.id for attempt in attempts)
            self.custody.reserve(Reserve(handoff, ids, NUM_TOKENS + 1, WRITER, HANDOFF.reservation_ttl_s))
            self.inbox.post(Prefill(handoff, attempts, prompt_ids, (), SamplingParams(9), DECODE, place))
        self.events.clear()
        self.loop.run()

    def outcomes(self) -> dict[str, PrefillOutcome]:
        return {event.handoff: event.outcome for event in self.events if isinstance(event, PrefillEnded)}

    def first_tokens(self) -> list[str]:
        """Whose, in order."""
        events = [event for event in self.events if isinstance(event, FirstToken)]
        return [event.attempt.removeprefix("of ") for event in events]

    def written(self) -> list[str]:
        """Which hand-offs, in order."""
        return [event.handoff for event in self.events if isinstance(event, Written)]


@pytest.fixture(params=[100, 7], ids=["blocks for all", "blocks for one"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(num_blocks=request.param)


def test_prompts_that_wait_for_others_keep_their_reservations(bench: Bench) -> None:
    bench.read(*range(1, 9))
    assert bench.now > 2 * HANDOFF.reservation_ttl_s
    assert bench.written() == list("12345678")


def test_the_request_that_arrived_first_is_read_first_whenever_it_comes(bench: Bench) -> None:
    bench.read(3, 1, 2)
    assert bench.first_tokens() == ["1", "2", "3"]


def test_a_prompt_that_makes_the_engine_fail_costs_its_neighbours_nothing(bench: Bench) -> None:
    bench.poison = 2
    bench.read(1, 2, 3)
    failed = {"2": PrefillOutcome.FAILED_ALONE}
    assert bench.outcomes() == {"1": PrefillOutcome.DONE, "3": PrefillOutcome.DONE} | failed
    assert bench.written() == ["1", "3"]
    assert [event.token.id for event in bench.events if isinstance(event, FirstToken)] == [1, 3]
