"""What a prefill worker does next: which prompts are read, and how their cache is handed off. Pure.

A prompt's life:

    waiting (no blocks) ─► reading (chunks; full blocks are copied once accepted) ─► read: first token out
        ─► handing off (the rest is copied) ─► ended: blocks free, PrefillEnded out

It ends early when the router cancels, the receiver stops or refuses, the pair breaks, or the engine fails.

Prompts are served in the order of their requests' places. The reservation of one that waits for others
here is renewed between two steps, each of which is far shorter than the life of a reservation.

The engine's thread owns all of it, the block pool included; other threads may ask for `load`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from prefill_worker.audit import audit_prefill
from prefill_worker.chunking import compose_chunks
from prefill_worker.pace import Pace
from prefill_worker.prompts import Prompt
from twinpool.engine.apart import Failed
from twinpool.engine.batch import PrefillChunk
from twinpool.kv.blocks import blocks_for
from twinpool.kv.pool import BlockPool, Owner
from twinpool.session.messages import (
    Audit,
    CancelPrefill,
    Event,
    FirstToken,
    LoadReport,
    Prefill,
    PrefillEnded,
    PrefillOutcome,
    PrefillStep,
)
from twinpool.transfer.words import Accepted, Ended, HandoffWord, PairLost, PairWord, Renew
from twinpool.types import HandoffId, Token
from twinpool.worker.handoff import State
from twinpool.worker.pulse import Pulse
from twinpool.worker.turn import Copied, Copy, CopyEnd, CopyFailed, CopyStopped, Stepped, Turn

Message = Prefill | CancelPrefill | PairWord | CopyEnd | Audit
Word = Event | HandoffWord


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """budget_tokens: most tokens in one step. accept_timeout_s: how long a prompt waits for `accepted`.

    renewal_s: how long a reservation goes without progress until it is renewed.
    step_target_s: how long a step should last; 0: no matter.
    """

    budget_tokens: int
    accept_timeout_s: float
    renewal_s: float
    step_target_s: float = 0.0


class PrefillDesk:
    """A `Desk`; see `twinpool.worker.turn`. block_size: tokens that a block holds."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        limits: PrefillLimits,
        pulse: Pulse,
        *,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._limits = limits
        self._pulse = pulse
        self._eos_token_ids = eos_token_ids
        self._pace = Pace(limits.budget_tokens, limits.step_target_s, block_size)
        # The oldest request's first.
        self._prompts: dict[HandoffId, Prompt] = {}
        self._words: list[Word] = []

    def load(self) -> LoadReport:
        """Counts now; approximate when called from another thread."""
        prompts = list(self._prompts.values())
        running = sum(bool(prompt.blocks) for prompt in prompts)
        return self._pulse.load(
            running=running,
            waiting=len(prompts) - running,
            blocks_free=self._pool.count(Owner.FREE),
            handoffs=sum(prompt.handoff is not None for prompt in prompts),
        )

    def hear(self, message: Message, now: float) -> None:
        """Take in a message; what it is about may be over already."""
        match message:
            case Prefill():
                self._start(message, now)
            case CancelPrefill(handoff):
                self._cancel(handoff)
            case Accepted(handoff, num_shared):
                prompt = self._prompts.get(handoff)
                if prompt is not None and prompt.handoff is not None:
                    prompt.handoff.accept(num_shared)
            case Ended(handoff, ending):
                if prompt := self._prompts.get(handoff):
                    self._end(prompt, PrefillOutcome(ending.value))
            case PairLost(decode, reason):
                for prompt in [
                    prompt for prompt in self._prompts.values() if prompt.command.decode == decode
                ]:
                    self._end(prompt, PrefillOutcome.PAIR_LOST, reason)
            case Copied() | CopyStopped() | CopyFailed():
                self._copy_ended(message, now)
            case Audit(audit_id):
                self._words.append(audit_prefill(audit_id, self._pool, self._prompts.values(), now))

    def plan(self, now: float) -> Turn[Word, Copy, HandoffId, PrefillChunk]:
        """Decide what is done next."""
        self._expire(now)
        self._give_blocks()
        copies = [copy for prompt in self._prompts.values() if (copy := prompt.copy(self._block_size))]
        self._keep_handoffs({copy.handoff for copy in copies}, now)
        words, self._words = self._words, []
        return Turn(words, copies, {} if copies else self._compose_step())

    def apply(self, stepped: Stepped[HandoffId, PrefillChunk]) -> None:
        """Take in what the engine has read."""
        sizes = []
        for handoff, chunk, result in stepped:
            prompt = self._prompts[handoff]
            if isinstance(result, Failed):
                outcome = PrefillOutcome.FAILED_ALONE if result.alone else PrefillOutcome.FAILED
                self._give_up(prompt, outcome, type(result.error).__name__)
                continue
            sizes.append(len(chunk.token_ids))
            prompt.num_computed += sizes[-1]
            if result is not None:
                self._first_token(prompt, result)
            if prompt.num_remaining == 0 and prompt.handoff is None:
                self._end(prompt, PrefillOutcome.DONE)
        if sizes:
            self._pace.stepped(sum(sizes), stepped.step_s)
            self._words.append(PrefillStep(len(sizes), sum(sizes), stepped.step_s))

    def _start(self, command: Prefill, now: float) -> None:
        prompt = Prompt.of(command, self._eos_token_ids, now)
        self._prompts[prompt.id] = prompt
        self._prompts = dict(sorted(self._prompts.items(), key=lambda item: item[1].command.place))
        num_tokens = len(prompt.token_ids)
        if not 0 < num_tokens <= self._pool.num_blocks * self._block_size:
            # It would wait for blocks for ever, and everybody behind it.
            self._end(prompt, PrefillOutcome.FAILED, f"{num_tokens} tokens do not fit this worker")

    def _cancel(self, handoff: HandoffId) -> None:
        if prompt := self._prompts.get(handoff):
            self._give_up(prompt, PrefillOutcome.STOPPED)

    def _copy_ended(self, end: CopyEnd, now: float) -> None:
        prompt = self._prompts.get(end.copy.handoff)
        if prompt is None or prompt.handoff is None:
            return
        match end:
            case Copied(copy):
                prompt.handoff.num_copied += len(copy.blocks)
                prompt.renewed_at = now
                if copy.is_last:
                    self._end(prompt, PrefillOutcome.DONE)
            case CopyStopped():
                prompt.handoff.state = State.OVER
            case CopyFailed(_, detail):
                self._give_up(prompt, PrefillOutcome.FAILED, detail)

    def _expire(self, now: float) -> None:
        """Give up on decode workers that do not answer."""
        for prompt in list(self._prompts.values()):
            waits = prompt.handoff is not None and prompt.handoff.state is State.ASKED
            if waits and now - prompt.renewed_at > self._limits.accept_timeout_s:
                self._give_up(prompt, PrefillOutcome.PAIR_LOST, "the decode worker did not answer `begin`")

    def _give_blocks(self) -> None:
        """Blocks for waiting prompts, the oldest first: none overtakes one that does not fit yet."""
        for prompt in self._prompts.values():
            if prompt.lease:
                continue
            needed = blocks_for(len(prompt.token_ids), self._block_size)
            prompt.lease = self._pool.lease(prompt.id, Owner.ROW, needed)
            if prompt.lease is None:
                return

    def _keep_handoffs(self, copied: Container[HandoffId], now: float) -> None:
        """Begin hand-offs, and renew those of which nothing could be copied for a while."""
        for prompt in self._prompts.values():
            if prompt.handoff is None:
                continue
            if begin := prompt.handoff.begin():
                prompt.renewed_at = now
                self._words += begin
            waits = prompt.handoff.state is State.ACCEPTED and prompt.id not in copied
            if waits and now - prompt.renewed_at >= self._limits.renewal_s:
                prompt.renewed_at = now
                self._words.append(Renew(prompt.handoff.decode, prompt.id))

    def _compose_step(self) -> dict[HandoffId, PrefillChunk]:
        reading = [prompt for prompt in self._prompts.values() if prompt.blocks and prompt.num_remaining]
        sizes = compose_chunks([prompt.num_remaining for prompt in reading], self._pace.budget_tokens)
        chunks = zip(reading, sizes, strict=True)
        return {prompt.id: prompt.chunk(size) for prompt, size in chunks if size}

    def _first_token(self, prompt: Prompt, token: Token) -> None:
        position = len(prompt.choice.output_ids)
        reason = prompt.choice.append(token)
        self._words.append(FirstToken(prompt.attempt, position, token, reason, len(prompt.token_ids)))

    def _give_up(self, prompt: Prompt, outcome: PrefillOutcome, detail: str = "") -> None:
        if prompt.handoff is not None:
            self._words += prompt.handoff.give_up()
        self._end(prompt, outcome, detail)

    def _end(self, prompt: Prompt, outcome: PrefillOutcome, detail: str = "") -> None:
        """Let it go, once its hand-off is over."""
        del self._prompts[prompt.id]
        if prompt.lease:
            self._pool.release(prompt.lease)
        self._words.append(PrefillEnded(prompt.id, outcome, detail, self.load()))
