"""Who owns which cache block: every block has exactly one owner, and every change of owner is checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice

MOVE_BLOCKS_PER_STEP = 16
"""Most blocks of moving rows that a decode worker copies between two steps: a millisecond or two."""


class Owner(StrEnum):
    """What a block can belong to; all but FREE also name the attempt."""

    FREE = "free"
    RESERVATION = "reservation"
    ROW = "row"
    QUARANTINE = "quarantine"


LEGAL_TRANSFERS = frozenset(
    {
        (Owner.FREE, Owner.RESERVATION),
        (Owner.FREE, Owner.ROW),
        (Owner.RESERVATION, Owner.ROW),
        (Owner.RESERVATION, Owner.QUARANTINE),
        (Owner.RESERVATION, Owner.FREE),
        (Owner.QUARANTINE, Owner.FREE),
        (Owner.ROW, Owner.FREE),
    }
)


class IllegalTransfer(RuntimeError):
    """A block was about to change hands in a way the table does not know: a bug."""


class BlockPool:
    """The blocks 0 .. num_blocks - 1 of one worker and their owners.

    Freed blocks are taken again last, so that a use after free shows late rather than never.
    """

    def __init__(self, num_blocks: int) -> None:
        self._owner: list[tuple[Owner, str]] = [(Owner.FREE, "")] * num_blocks
        self._free = deque(range(num_blocks))
        self._count = dict.fromkeys(Owner, 0)
        self._count[Owner.FREE] = num_blocks

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return len(self._owner)

    def count(self, owner: Owner) -> int:
        """Blocks that belong to this kind of owner."""
        return self._count[owner]

    def allocate(self, owner: Owner, attempt: str, num_blocks: int) -> tuple[int, ...] | None:
        """Take free blocks for an attempt; None if there are not enough, and then none is taken."""
        if num_blocks > len(self._free):
            return None
        blocks = tuple(islice(self._free, num_blocks))
        self._change(blocks, (Owner.FREE, ""), (owner, attempt))
        for _ in blocks:
            self._free.popleft()
        return blocks

    def transfer(self, blocks: Sequence[int], attempt: str, source: Owner, target: Owner) -> None:
        """Hand an attempt's blocks from one kind of owner to another."""
        self._change(blocks, (source, attempt), (target, attempt))

    def free(self, blocks: Sequence[int], attempt: str, source: Owner) -> None:
        """Give an attempt's blocks back to the free list."""
        self._change(blocks, (source, attempt), (Owner.FREE, ""))
        self._free.extend(blocks)

    def owners(self) -> list[tuple[Owner, str]]:
        """A copy of every block's owner, for checks."""
        return list(self._owner)

    def free_blocks(self) -> list[int]:
        """A copy of the free list, for checks."""
        return list(self._free)

    def _change(self, blocks: Sequence[int], source: tuple[Owner, str], target: tuple[Owner, str]) -> None:
        """All of them or, if one may not, none."""
        if (source[0], target[0]) not in LEGAL_TRANSFERS:
            raise IllegalTransfer(f"{source[0]} to {target[0]} is not a legal transfer")
        for block in blocks:
            if self._owner[block] != source:
                raise IllegalTransfer(f"block {block} belongs to {self._owner[block]}, not to {source}")
        if len(set(blocks)) < len(blocks):
            raise IllegalTransfer(f"a block of {blocks} is named twice")
        for block in blocks:
            self._owner[block] = target
        self._count[source[0]] -= len(blocks)
        self._count[target[0]] += len(blocks)


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold num_tokens."""
    return -(-num_tokens // block_size)


def reservation_tokens(num_known_tokens: int) -> int:
    """Tokens a reservation covers: prompt and token log, and the token that prefill adds.

    The row takes more blocks as it grows.
    """
    return num_known_tokens + 1
