"""One prompt on a prefill worker: how far it is read, and how far its cache has moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinpool.engine.batch import PrefillChunk
from twinpool.kv.pool import Lease
from twinpool.sampling.choice import ChoiceState
from twinpool.session.messages import HeldStage, Prefill
from twinpool.types import AttemptId, HandoffId
from twinpool.worker.handoff import Handoff
from twinpool.worker.turn import Copy


@dataclass(slots=True)
class Prompt:
    """A hand-off's state, owned by the desk.

    attempt: the one that it is for. choice: whose next token it draws. token_ids: prompt and token log, which
    are read alike. handoff: None where nobody waits for the cache. renewed_at: when the decode worker was
    last given a sign of life of it. lease: None while it waits. num_computed: tokens whose keys and values
    are in `blocks`.
    """

    command: Prefill
    attempt: AttemptId
    choice: ChoiceState
    token_ids: tuple[int, ...]
    handoff: Handoff | None
    started_at: float
    renewed_at: float
    lease: Lease | None = None
    num_computed: int = 0

    @classmethod
    def of(cls, command: Prefill, eos_token_ids: frozenset[int], now: float) -> Prompt:
        """A prompt not yet read."""
        (attempt,) = command.attempts
        handoff = None if command.decode is None else Handoff(command.decode, command.handoff)
        choice = ChoiceState(
            command.params, attempt.choice_index, command.prompt_ids, list(command.output_ids), eos_token_ids
        )
        token_ids = command.prompt_ids + command.output_ids
        return cls(command, attempt.id, choice, token_ids, handoff, now, renewed_at=now)

    @property
    def id(self) -> HandoffId:
        """The hand-off's, whether there is anybody to hand it to or not."""
        return self.command.handoff

    @property
    def blocks(self) -> Sequence[int]:
        """Its block table; empty while it waits."""
        return self.lease.blocks if self.lease else ()

    @property
    def num_remaining(self) -> int:
        """Tokens still to compute."""
        return len(self.token_ids) - self.num_computed

    @property
    def stage(self) -> HeldStage:
        """Where it is in its life; see `prefill_worker.desk`."""
        if not self.blocks:
            return HeldStage.WAITING
        return HeldStage.READING if self.num_remaining else HeldStage.HANDING_OFF

    def chunk(self, num_tokens: int) -> PrefillChunk:
        """The next num_tokens; the last chunk draws the first token."""
        end = self.num_computed + num_tokens
        sample = self.choice.next() if end == len(self.token_ids) else None
        return PrefillChunk(self.token_ids[self.num_computed : end], self.num_computed, self.blocks, sample)

    def copy(self, block_size: int) -> Copy | None:
        """The blocks that are complete, or final, and not yet copied, if the decode worker takes them."""
        if self.handoff is None:
            return None
        is_last = self.num_remaining == 0
        full = len(self.blocks) if is_last else self.num_computed // block_size
        return self.handoff.copy(self.blocks, full, is_last=is_last)
