"""How large one request may be, by what the model and the pools can hold; pure."""

from __future__ import annotations

from dataclasses import dataclass

# No vocabulary in use has a longer token, so a text with more bytes per context token cannot fit.
# It is refused before the tokenizer spends a second on it.
MAX_BYTES_PER_TOKEN = 128


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What the model and the pools can hold.

    pool_tokens: most tokens of one request in either pool; 0 while no worker has told its size.
    """

    context_tokens: int
    vocab_size: int
    pool_tokens: int

    @property
    def request_tokens(self) -> int:
        """Most tokens of prompt and answer together."""
        return min(self.context_tokens, self.pool_tokens) if self.pool_tokens else self.context_tokens

    @property
    def text_bytes(self) -> int:
        """Most UTF-8 bytes of a text that is tokenized."""
        return self.context_tokens * MAX_BYTES_PER_TOKEN

    @property
    def binding(self) -> str:
        """Which of the two limits is the tighter one, in words."""
        return "context" if self.request_tokens == self.context_tokens else "workers' cache"
