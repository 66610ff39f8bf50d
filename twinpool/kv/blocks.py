"""How many blocks something takes: pure arithmetic."""

from __future__ import annotations

MOVE_BLOCKS_PER_STEP = 16
"""Most blocks of moving rows that a decode worker copies between two steps: a millisecond or two."""


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold num_tokens."""
    return -(-num_tokens // block_size)


def reservation_tokens(num_known_tokens: int) -> int:
    """Tokens a reservation covers: prompt and token log, and the token that prefill adds.

    The row takes more blocks as it grows.
    """
    return num_known_tokens + 1


def leaves_rows_room(num_blocks: int, *, free: int, num_rows: int) -> bool:
    """Whether a decode worker may set so many of its free blocks aside: one must remain for each running row.

    A prompt let in on the last blocks would only push rows out again that are further on.
    """
    return num_blocks + num_rows <= free
