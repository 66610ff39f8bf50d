"""How many prompt tokens a step takes on, so that it lasts about as long as it should: pure."""

from __future__ import annotations

_NEWEST_SHARE = 0.3
"""Of the newest step in what is expected: cores come and go, and long contexts cost more."""


class Pace:
    """The budget of a prefill worker's steps.

    most_tokens: of a step in any case. target_s: how long one should last; 0: as long as most_tokens take.
    block_size: budgets are whole blocks, and at least one.
    """

    def __init__(self, most_tokens: int, target_s: float, block_size: int) -> None:
        self._most_tokens = most_tokens
        self._target_s = target_s
        self._block_size = block_size
        self._token_s = 0.0

    @property
    def budget_tokens(self) -> int:
        """Most tokens of the next step."""
        if not self._token_s or not self._target_s:
            return self._most_tokens
        blocks = int(self._target_s / self._token_s) // self._block_size
        return min(max(blocks, 1) * self._block_size, self._most_tokens)

    def stepped(self, num_tokens: int, step_s: float) -> None:
        """Learn from a step. A short one says little, for it costs a good deal before its first token."""
        if 2 * num_tokens < self.budget_tokens and step_s < self._target_s:
            return
        token_s = step_s / num_tokens
        self._token_s += (token_s - self._token_s) * (_NEWEST_SHARE if self._token_s else 1.0)
