"""What drawing a choice's next token depends on, and the judgement whether it was the last: pure."""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.engine.batch import SamplingRow
from twinpool.sampling.params import SamplingParams
from twinpool.types import FinishReason, Token


@dataclass(slots=True)
class ChoiceState:
    """One choice on the worker that draws its tokens, the same on both pools.

    Whoever draws next builds it anew from the prompt and the token log, so that it goes on as an undisturbed
    choice would. index: which of a request's answers. output_ids: the log, which grows here; its owner's.
    """

    params: SamplingParams
    index: int
    prompt_ids: tuple[int, ...]
    output_ids: list[int]
    eos_token_ids: frozenset[int]

    @property
    def length(self) -> int:
        """Tokens of prompt and log; the index of the next token in them."""
        return len(self.prompt_ids) + len(self.output_ids)

    def next(self) -> SamplingRow:
        """How the next token is drawn."""
        return SamplingRow(self.params, self.index, self.length)

    def append(self, token: Token) -> FinishReason | None:
        """Take the drawn token into the log; why it is the last, or None where it is not."""
        self.output_ids.append(token.id)
        if token.id in self.eos_token_ids and not self.params.ignore_eos:
            return FinishReason.STOP
        if len(self.output_ids) >= self.params.max_tokens:
            return FinishReason.LENGTH
        return None
