"""The cache blocks of one worker, and the leases by which they are held: every change of hands is checked.

A lease is the block table of one holder, in the order of its tokens:

    blocks   7   2 | 9   4   1
             shared  own

Own blocks are this lease's alone: they are written, quarantined, and free again with it. Shared ones come
first, are full, and are only read. They are nobody's own, but pinned by every lease that begins with them,
and free once the last of those lets go.

An own block becomes a shared one by `publish`, which ends its writing for good; other leases may begin with
it from then on. So a row is forked by publishing its full blocks, leasing as many as are left behind them,
and copying those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice


class Owner(StrEnum):
    """What a block can belong to; all but FREE and SHARED also name the holder."""

    FREE = "free"
    RESERVATION = "reservation"
    ROW = "row"
    QUARANTINE = "quarantine"
    SHARED = "shared"


LEGAL_TRANSFERS = frozenset(
    {
        (Owner.FREE, Owner.RESERVATION),
        (Owner.FREE, Owner.ROW),
        (Owner.RESERVATION, Owner.ROW),
        (Owner.RESERVATION, Owner.QUARANTINE),
        (Owner.RESERVATION, Owner.FREE),
        (Owner.QUARANTINE, Owner.FREE),
        (Owner.ROW, Owner.FREE),
        # Not from a reservation: its writer may not have said its last word.
        (Owner.ROW, Owner.SHARED),
        (Owner.SHARED, Owner.FREE),
    }
)

_NOBODY = (Owner.FREE, "")
_ALL = (Owner.SHARED, "")


class IllegalTransfer(RuntimeError):
    """A block was about to change hands in a way the table does not know: a bug."""


@dataclass(slots=True, eq=False)
class Lease:
    """What one holder has of a pool. The pool alone changes it; all others read.

    owner: what its own blocks belong to; FREE once it is released. num_shared: how many of `blocks`, from the
    first, are shared.
    """

    holder: str
    owner: Owner
    blocks: list[int]
    num_shared: int = 0

    @property
    def shared(self) -> tuple[int, ...]:
        """The blocks it only reads."""
        return tuple(self.blocks[: self.num_shared])

    @property
    def own(self) -> tuple[int, ...]:
        """The blocks that are its alone."""
        return tuple(self.blocks[self.num_shared :])

    @property
    def num_own(self) -> int:
        """How many are its alone."""
        return len(self.blocks) - self.num_shared


class BlockPool:
    """The blocks 0 .. num_blocks - 1 of one worker, who owns them, and how many leases pin the shared ones.

    Freed blocks are taken again last, so that a use after free shows late rather than never. A method that
    raises IllegalTransfer has changed nothing.
    """

    def __init__(self, num_blocks: int) -> None:
        self._owner: list[tuple[Owner, str]] = [_NOBODY] * num_blocks
        self._pins = [0] * num_blocks
        self._free = deque(range(num_blocks))
        self._count = dict.fromkeys(Owner, 0)
        self._count[Owner.FREE] = num_blocks

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return len(self._owner)

    def count(self, owner: Owner) -> int:
        """Blocks that belong to this kind of owner; a shared one counts once."""
        return self._count[owner]

    def lease(self, holder: str, owner: Owner, num_own: int, shared: Sequence[int] = ()) -> Lease | None:
        """Pin shared blocks, and take free ones behind them; None, and nothing done, if too few are free."""
        if num_own > len(self._free):
            return None
        self._require(shared, _ALL)
        own = tuple(islice(self._free, num_own))
        self._change(own, _NOBODY, (owner, holder))
        for _ in own:
            self._free.popleft()
        for block in shared:
            self._pins[block] += 1
        return Lease(holder, owner, [*shared, *own], len(shared))

    def grow(self, lease: Lease) -> int | None:
        """Take one more block at a lease's end; None if none is free."""
        if not self._free:
            return None
        block = self._free[0]
        self._change((block,), _NOBODY, (lease.owner, lease.holder))
        lease.blocks.append(self._free.popleft())
        return block

    def transfer(self, lease: Lease, target: Owner, holder: str = "") -> None:
        """Hand a lease's own blocks to another kind of owner; a quarantine lets go of the shared ones.

        holder: whose lease it is from then on; empty: the same one's.
        """
        if Owner.FREE in (lease.owner, target) or target is Owner.SHARED:
            raise IllegalTransfer(f"{lease.owner} to {target} is not a legal transfer of a whole lease")
        self._require(lease.shared, _ALL)
        holder = holder or lease.holder
        self._change(lease.own, (lease.owner, lease.holder), (target, holder))
        lease.owner, lease.holder = target, holder
        if target is Owner.QUARANTINE:
            self._unpin(lease)

    def publish(self, lease: Lease, num_blocks: int) -> None:
        """Share the first num_blocks of a row's own: they are full, and will never be written again."""
        blocks = lease.own[:num_blocks]
        if len(blocks) < num_blocks:
            raise IllegalTransfer(f"{lease.holder} publishes {num_blocks} blocks and owns {len(blocks)}")
        self._change(blocks, (lease.owner, lease.holder), _ALL)
        for block in blocks:
            self._pins[block] = 1
        lease.num_shared += num_blocks

    def release(self, lease: Lease) -> None:
        """End a lease: its own blocks are free, and those shared ones that no other lease pins."""
        own = lease.own
        self._require(lease.shared, _ALL)
        self._change(own, (lease.owner, lease.holder), _NOBODY)
        self._free.extend(own)
        self._unpin(lease)
        lease.owner, lease.blocks = Owner.FREE, []

    def owners(self) -> list[tuple[Owner, str]]:
        """A copy of every block's owner, for checks."""
        return list(self._owner)

    def pins(self) -> list[int]:
        """A copy of how many leases begin with each block, for checks."""
        return list(self._pins)

    def free_blocks(self) -> list[int]:
        """A copy of the free list, for checks."""
        return list(self._free)

    def _unpin(self, lease: Lease) -> None:
        for block in lease.shared:
            self._pins[block] -= 1
        last = [block for block in lease.shared if not self._pins[block]]
        self._change(last, _ALL, _NOBODY)
        self._free.extend(last)
        lease.blocks, lease.num_shared = list(lease.own), 0

    def _change(self, blocks: Sequence[int], source: tuple[Owner, str], target: tuple[Owner, str]) -> None:
        """All of them or, if one may not, none."""
        if (source[0], target[0]) not in LEGAL_TRANSFERS:
            raise IllegalTransfer(f"{source[0]} to {target[0]} is not a legal transfer")
        self._require(blocks, source)
        for block in blocks:
            self._owner[block] = target
        self._count[source[0]] -= len(blocks)
        self._count[target[0]] += len(blocks)

    def _require(self, blocks: Sequence[int], owner: tuple[Owner, str]) -> None:
        """Each of them belongs to this owner, and is named once."""
        for block in blocks:
            if self._owner[block] != owner:
                raise IllegalTransfer(f"block {block} belongs to {self._owner[block]}, not to {owner}")
        if len(set(blocks)) < len(blocks):
            raise IllegalTransfer(f"a block of {blocks} is named twice")
