"""A decode worker's books: block pool, reservations and batch, checked against one another. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twinpool.kv.audit import Claim, audit_blocks, count_blocks
from twinpool.kv.pool import BlockPool
from twinpool.kv.reservations import OWNER_IN, Reservations, Stage
from twinpool.session.messages import Audited, HeldStage, Holding
from twinpool.types import AttemptId


def audit_decode(
    audit_id: str,
    pool: BlockPool,
    reservations: Reservations,
    batch: Mapping[AttemptId, Sequence[int]],
    now: float,
) -> Audited:
    """The books, all of one moment. batch: each row's blocks by attempt; now: on the reservations' clock."""
    claims = [
        Claim(held.lease.holder, OWNER_IN[held.stage], held.lease.own, held.lease.shared)
        for held in reservations
    ]
    holdings = tuple(
        Holding(held.holder, HeldStage(held.stage), held.lease.num_own, now - held.since)
        for held in reservations
    )
    problems = audit_blocks(pool, claims) + _audit_batch(reservations, batch)
    return Audited(audit_id, count_blocks(pool), holdings, tuple(problems))


def _audit_batch(reservations: Reservations, batch: Mapping[AttemptId, Sequence[int]]) -> list[str]:
    """Rows and admitted reservations are the same attempts, with the same blocks in the same order."""
    admitted = {held.attempt: held.lease.blocks for held in reservations if held.stage is Stage.ADMITTED}
    problems = [f"attempt {attempt} is admitted and no row" for attempt in admitted.keys() - batch.keys()]
    problems += [f"attempt {attempt} is a row and not admitted" for attempt in batch.keys() - admitted.keys()]
    problems += [
        f"the row of attempt {attempt} has blocks {list(batch[attempt])}, its reservation {blocks}"
        for attempt, blocks in admitted.items()
        if attempt in batch and list(batch[attempt]) != blocks
    ]
    return problems
