"""A request on its way to the scheduler, and what comes of it. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.sampling.params import SamplingParams
from twinpool.types import FinishReason, ServedBy, Timing, Token, Usage


@dataclass(frozen=True, slots=True)
class Request:
    """A validated, tokenized request.

    pair: worker ids (prefill, decode) that alone may serve it, for canaries; None: any.
    timeout_s: seconds its client is willing to wait, from its arrival; None: as long as the server is.
    waited_s: seconds since its arrival when it is submitted; its text had to be tokenized.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    pair: tuple[str, str] | None = None
    timeout_s: float | None = None
    waited_s: float = 0.0

    @property
    def is_canary(self) -> bool:
        """Whether it is the router's own, sent through a pair; such are not counted among users' requests."""
        return self.pair is not None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a choice ended well. num_resumes: how often a new attempt went on with its token log.

    usage: of its answer, fewer tokens than were output where it was cut.
    """

    finish_reason: FinishReason
    usage: Usage
    timing: Timing
    workers: ServedBy
    num_resumes: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one choice, all that came since the last Output; ending is set in the last only."""

    choice_index: int
    tokens: tuple[Token, ...]
    ending: Ending | None = None
