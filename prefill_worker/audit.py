"""A prefill worker's books: block pool and prompts, checked against one another. Pure."""

from __future__ import annotations

from collections.abc import Collection

from prefill_worker.prompts import Prompt
from twinpool.kv.audit import Claim, audit_blocks, count_blocks
from twinpool.kv.blocks import BlockPool, Owner
from twinpool.session.messages import Audited, HeldAttempt


def audit_prefill(audit_id: str, pool: BlockPool, prompts: Collection[Prompt], now: float) -> Audited:
    """The books, all of one moment. now: on the clock that the prompts came by."""
    claims = [Claim(prompt.attempt, Owner.ROW, prompt.blocks) for prompt in prompts]
    held = tuple(
        HeldAttempt(prompt.attempt, prompt.stage, len(prompt.blocks), now - prompt.started_at)
        for prompt in prompts
    )
    return Audited(audit_id, count_blocks(pool), held, tuple(audit_blocks(pool, claims)))
