"""Which prompts advance in the next prefill step, and by how much: pure."""

from __future__ import annotations

from collections.abc import Sequence

OLDEST_SHARE = 4
"""The oldest prompt gets at least a quarter of every step, so that short ones cannot starve it."""


def compose_chunks(remaining: Sequence[int], budget_tokens: int) -> list[int]:
    """Tokens to compute of each prompt, given each one's remaining tokens in the order of their places.

    The sum is at most budget_tokens. Beyond the oldest prompt's share, the shortest remainder goes first:
    a short prompt behind a long one waits for about one step (shortest remaining processing time,
    Schrage 1968, bounded against starvation).
    """
    chunks = [0] * len(remaining)
    if not remaining:
        return chunks
    chunks[0] = min(remaining[0], max(1, budget_tokens // OLDEST_SHARE))
    left = budget_tokens - chunks[0]
    for index in sorted(range(len(remaining)), key=lambda index: remaining[index]):
        more = min(remaining[index] - chunks[index], left)
        chunks[index] += more
        left -= more
    return chunks
