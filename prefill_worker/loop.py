"""The prefill engine's thread: reads prompts in chunks and pushes their cache while it reads.

A prompt's life:

    waiting (no blocks) ─► reading (chunks; full blocks are pushed once accepted) ─► read: first token out
        ─► handing off (the rest is pushed) ─► ended: blocks free, PrefillEnded out

It ends early when the router cancels, the receiver stops or refuses, the pair breaks, or the engine fails.

Prompts are served in the order of their requests' first arrival. The reservation of one that waits for others
here is renewed between two steps, each of which is far shorter than the life of a reservation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prefill_worker.audit import audit_prefill
from prefill_worker.chunking import compose_chunks
from prefill_worker.prompts import Prompt
from twinpool.engine.apart import step_apart
from twinpool.engine.runner import Engine
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
from twinpool.transfer.pairs import Accepted, Ended, PairLost, PairWord
from twinpool.transfer.port import HandoffSender
from twinpool.types import finish_reason
from twinpool.worker.inbox import Inbox
from twinpool.worker.pulse import Pulse

log = logging.getLogger(__name__)
IDLE_WAIT_S = 0.25


@dataclass(frozen=True, slots=True)
class CancelAll:
    """The router is gone."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker leaves."""


Message = Prefill | CancelPrefill | PairWord | CancelAll | Audit | Stop


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """budget_tokens: most tokens in one step. accept_timeout_s: how long a prompt waits for `accepted`.

    renewal_s: how long a reservation goes without progress until it is renewed.
    """

    budget_tokens: int
    accept_timeout_s: float
    renewal_s: float


class PrefillLoop:
    """Owns the engine, the blocks and all prompts; everything reaches it through its inbox.

    senders: the open pairs by decode incarnation, filled by whoever joins them.
    """

    def __init__(
        self,
        engine: Engine,
        pool: BlockPool,
        inbox: Inbox[Message],
        senders: Mapping[str, HandoffSender],
        limits: PrefillLimits,
        pulse: Pulse,
        *,
        eos_token_ids: frozenset[int],
        publish: Callable[[Event], None],
    ) -> None:
        self._inbox = inbox
        self._engine = engine
        self._pool = pool
        self._block_size = engine.storage.layout.block_size
        self._senders = senders
        self._limits = limits
        self._pulse = pulse
        self._eos_token_ids = eos_token_ids
        self._publish = publish
        # The oldest request's first.
        self._prompts: dict[str, Prompt] = {}
        self._stopping = False

    def run(self) -> None:
        """Work until `Stop`."""
        while not self._stopping:
            self._pulse.beat()
            self._give_blocks()
            busy = any(prompt.num_remaining and prompt.blocks for prompt in self._prompts.values())
            for message in self._inbox.take(0.0 if busy else IDLE_WAIT_S):
                self._hear(message)
            self._read_step()
            now = time.monotonic()
            self._expire(now)
            self._renew(now)

    def load(self) -> LoadReport:
        """Counts now; approximate when called from another thread."""
        prompts = list(self._prompts.values())
        running = sum(bool(prompt.blocks) for prompt in prompts)
        handoffs = sum(prompt.sender is not None for prompt in prompts)
        free = self._pool.count(Owner.FREE)
        return LoadReport(
            running,
            len(prompts) - running,
            free,
            handoffs=handoffs,
            progress=self._pulse.turns,
            step_s=self._pulse.step_s,
            cpu_s=self._pulse.cpu_s,
            rss_bytes=self._pulse.rss_bytes,
        )

    def _hear(self, message: Message) -> None:
        match message:
            case Prefill():
                self._start(message)
            case CancelPrefill(attempt):
                self._cancel(attempt)
            case Accepted(attempt):
                if prompt := self._prompts.get(attempt):
                    prompt.accepted = True
                    self._push(prompt)
            case Ended(attempt, ending):
                if prompt := self._prompts.get(attempt):
                    self._end(prompt, PrefillOutcome(ending.value))
            case PairLost(decode, reason):
                for prompt in list(self._prompts.values()):
                    if prompt.command.decode == decode:
                        self._end(prompt, PrefillOutcome.PAIR_LOST, reason)
            case CancelAll():
                for attempt in list(self._prompts):
                    self._cancel(attempt)
            case Audit(audit_id):
                prompts = self._prompts.values()
                self._publish(audit_prefill(audit_id, self._pool, prompts, time.monotonic()))
            case Stop():
                self._stopping = True

    def _start(self, command: Prefill) -> None:
        sender = self._senders.get(command.decode) if command.decode else None
        prompt = Prompt.of(command, sender, time.monotonic())
        self._prompts[command.attempt] = prompt
        self._prompts = dict(sorted(self._prompts.items(), key=lambda item: item[1].command.arrival))
        num_tokens = len(prompt.token_ids)
        if not 0 < num_tokens <= self._pool.num_blocks * self._block_size:
            # It would wait for blocks for ever, and everybody behind it.
            self._end(prompt, PrefillOutcome.FAILED, f"{num_tokens} tokens do not fit this worker")
        elif sender is not None:
            sender.begin(command.attempt)
        elif command.decode is not None:
            self._end(prompt, PrefillOutcome.PAIR_LOST, f"no pair with {command.decode}")

    def _cancel(self, attempt: str) -> None:
        prompt = self._prompts.get(attempt)
        if prompt is not None:
            self._stop_sender(prompt)
            self._end(prompt, PrefillOutcome.STOPPED)

    def _give_blocks(self) -> None:
        """Blocks for waiting prompts, the oldest first: none overtakes one that does not fit yet."""
        for prompt in self._prompts.values():
            if prompt.lease:
                continue
            needed = blocks_for(len(prompt.token_ids), self._block_size)
            prompt.lease = self._pool.lease(prompt.attempt, Owner.ROW, needed)
            if prompt.lease is None:
                return

    def _read_step(self) -> None:
        reading = [prompt for prompt in self._prompts.values() if prompt.blocks and prompt.num_remaining]
        sizes = compose_chunks([prompt.num_remaining for prompt in reading], self._limits.budget_tokens)
        step = [(prompt, size) for prompt, size in zip(reading, sizes, strict=True) if size]
        if not step:
            return
        started = time.monotonic()
        chunks = [prompt.chunk(size) for prompt, size in step]
        outcomes = step_apart(self._engine.prefill, chunks, self._pulse.beat)
        step_s = self._pulse.step_s = time.monotonic() - started
        read = []
        for (prompt, size), outcome in zip(step, outcomes, strict=True):
            if isinstance(outcome, Exception):
                log.error("attempt %s: its step failed", prompt.attempt, extra={"attempt": prompt.attempt})
                self._fail(prompt, outcome)
                continue
            read.append(size)
            prompt.num_computed += size
            if outcome is not None:
                self._first_token(prompt, outcome)
            self._push(prompt)
        if read:
            self._publish(PrefillStep(len(read), sum(read), step_s))

    def _first_token(self, prompt: Prompt, token: int) -> None:
        position = len(prompt.command.output_ids)
        reason = finish_reason(token, position + 1, prompt.command.params, self._eos_token_ids)
        self._publish(FirstToken(prompt.attempt, position, token, reason, len(prompt.token_ids)))

    def _push(self, prompt: Prompt) -> None:
        """Copy what is complete; once all is, say the last word and let the blocks go."""
        if prompt.sender is None:
            if prompt.num_remaining == 0:
                self._end(prompt, PrefillOutcome.DONE)
            return
        if not prompt.accepted:
            return
        blocks = prompt.unpushed(self._block_size)
        if blocks:
            try:
                pushed = prompt.sender.push(prompt.attempt, blocks, prompt.num_pushed)
            except Exception as error:
                about = {"attempt": prompt.attempt}
                log.exception("attempt %s: a push failed", prompt.attempt, extra=about)
                self._fail(prompt, error)
                return
            if not pushed:
                return  # stopped: the transport has posted, or will post, why
            prompt.num_pushed += len(blocks)
            prompt.renewed_at = time.monotonic()
        if prompt.num_remaining == 0 and prompt.sender.written(prompt.attempt):
            self._end(prompt, PrefillOutcome.DONE)

    def _expire(self, now: float) -> None:
        for prompt in list(self._prompts.values()):
            if prompt.sender is None or prompt.accepted:
                continue
            if now - prompt.started_at > self._limits.accept_timeout_s:
                self._stop_sender(prompt)
                self._end(prompt, PrefillOutcome.PAIR_LOST, "the decode worker did not answer `begin`")

    def _renew(self, now: float) -> None:
        """Keep the reservations of prompts of which nothing could be pushed for a while."""
        for prompt in self._prompts.values():
            if prompt.sender is None or not prompt.accepted:
                continue
            if now - prompt.renewed_at >= self._limits.renewal_s:
                prompt.renewed_at = now
                prompt.sender.renew(prompt.attempt)

    def _fail(self, prompt: Prompt, error: Exception) -> None:
        self._stop_sender(prompt)
        self._end(prompt, PrefillOutcome.FAILED, type(error).__name__)

    def _stop_sender(self, prompt: Prompt) -> None:
        if prompt.sender is not None:
            prompt.sender.stopped(prompt.attempt)

    def _end(self, prompt: Prompt, outcome: PrefillOutcome, detail: str = "") -> None:
        del self._prompts[prompt.attempt]
        if prompt.lease:
            self._pool.release(prompt.lease)
        self._publish(PrefillEnded(prompt.attempt, outcome, detail, self.load()))
