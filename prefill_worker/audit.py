"""A prefill worker's books: block pool and prompts, checked against one another. Pure."""

from __future__ import annotations

from collections.abc import Collection

from prefill_worker.prompts import Prompt
from twinpool.kv.audit import Claim, audit_blocks, count_blocks
from twinpool.kv.pool import BlockPool, Owner
from twinpool.session.messages import Audited, Holding


def audit_prefill(audit_id: str, pool: BlockPool, prompts: Collection[Prompt], now: float) -> Audited:
    """The books, all of one moment. now: on the clock that the prompts came by."""
    leases = [prompt.lease for prompt in prompts if prompt.lease]
    claims = [Claim(lease.holder, Owner.ROW, lease.own, lease.shared) for lease in leases]
    held = tuple(
        Holding(prompt.id, prompt.stage, prompt.lease.num_own if prompt.lease else 0, now - prompt.started_at)
        for prompt in prompts
    )
    return Audited(audit_id, count_blocks(pool), held, tuple(audit_blocks(pool, claims)))
