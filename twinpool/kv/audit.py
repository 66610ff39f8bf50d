"""Checks a worker's block pool against what their holders believe to have: pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twinpool.kv.pool import BlockPool, Owner
from twinpool.session.messages import BlockCounts

MOST_NAMED = 8
"""Blocks that a problem names one by one."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The blocks that a holder believes to be its own, and as what; and the shared ones that it pins."""

    holder: str
    owner: Owner
    blocks: Sequence[int]
    shared: Sequence[int] = ()


def count_blocks(pool: BlockPool) -> BlockCounts:
    """Blocks by owner, shared ones once."""
    return BlockCounts(
        free=pool.count(Owner.FREE),
        reserved=pool.count(Owner.RESERVATION),
        rows=pool.count(Owner.ROW),
        cached=pool.count(Owner.SHARED),
        quarantined=pool.count(Owner.QUARANTINE),
    )


def audit_blocks(pool: BlockPool, claims: Iterable[Claim]) -> list[str]:
    """What is wrong, in words; empty if every block is free, one holder's, or shared by so many holders, by
    ledger and claims alike.

    The ledger names one owner per block, so two claims to a block, or a claim to it twice, differ from it.
    """
    claims = list(claims)
    ledger: defaultdict[tuple[Owner, str], list[int]] = defaultdict(list)
    for block, (owner, holder) in enumerate(pool.owners()):
        ledger[owner, holder].append(block)
    problems = _differing_counts(pool, ledger)
    free, listed = ledger.pop((Owner.FREE, ""), []), sorted(pool.free_blocks())
    if listed != free:
        problems.append(f"the free list holds {_named(listed)}, but the ledger has {_named(free)} free")
    problems += _differing_pins(pool, ledger.pop((Owner.SHARED, ""), []), claims)
    for claim in claims:
        known, claimed = ledger.pop((claim.owner, claim.holder), []), sorted(claim.blocks)
        if claimed != known:
            whose = f"{claim.holder} ({claim.owner})"
            problems.append(f"{whose} holds {_named(claimed)}, but the ledger gives it {_named(known)}")
    for (owner, holder), blocks in ledger.items():
        problems.append(f"{_named(blocks)} belong to {owner} {holder}, which nobody holds")
    return problems


def _differing_pins(pool: BlockPool, shared: Sequence[int], claims: Iterable[Claim]) -> list[str]:
    """What is shared is pinned by those who claim it, and nothing else is pinned."""
    claimed = Counter(block for claim in claims for block in claim.shared)
    pinned = Counter({block: pins for block, pins in enumerate(pool.pins()) if pins})
    problems = [
        f"block {block} is pinned by {pinned[block]} holders, but {claimed[block]} share it"
        for block in sorted(pinned.keys() | claimed.keys())
        if pinned[block] != claimed[block]
    ]
    if sorted(pinned) != shared:
        problems.append(f"{_named(sorted(pinned))} are pinned, but the ledger has {_named(shared)} shared")
    return problems


def _differing_counts(pool: BlockPool, ledger: dict[tuple[Owner, str], list[int]]) -> list[str]:
    owned: Counter[Owner] = Counter()
    for (owner, _), blocks in ledger.items():
        owned[owner] += len(blocks)
    return [
        f"{pool.count(owner)} blocks are counted as {owner}, but {owned[owner]} are"
        for owner in Owner
        if pool.count(owner) != owned[owner]
    ]


def _named(blocks: Sequence[int]) -> str:
    more = ", …" if len(blocks) > MOST_NAMED else ""
    names = f" ({', '.join(map(str, blocks[:MOST_NAMED]))}{more})" if blocks else ""
    return f"{len(blocks)} blocks{names}"
