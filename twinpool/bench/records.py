"""What became of one request, as the one who sent it saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from twinpool.types import Timing


@dataclass(frozen=True, slots=True)
class Answered:
    """What a server says at an answer's end. timing: its own, where it tells."""

    prompt_tokens: int
    output_tokens: int
    timing: Timing | None = None


@dataclass(slots=True)
class Record:
    """Times are seconds since the run began; None: not yet.

    due_s: when it was to be sent. begun_s: when its sender came to it; what lies between is the sender's own
    lateness. sent_s: when it was sent, after waiting for one of the slots of a bounded concurrency.
    chunks_s: when each chunk that brought tokens came. error: empty unless it failed.
    """

    due_s: float
    begun_s: float | None = None
    sent_s: float | None = None
    chunks_s: list[float] = field(default_factory=list)
    ended_s: float | None = None
    answered: Answered | None = None
    error: str = ""

    @property
    def output_tokens(self) -> int:
        """As the server counts them; 0 for a request without an answer."""
        return 0 if self.answered is None else self.answered.output_tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """A request with its whole answer: what latencies are made of. Seconds throughout.

    tpot_s: None for an answer of one token, which has no time between tokens.
    """

    ttft_s: float
    e2el_s: float
    tpot_s: float | None
    itls_s: Sequence[float]


def answer_of(record: Record) -> Answer | None:
    """None for a request that failed or is not over.

    TTFT: first chunk - send; an answer whose tokens make no text may have no chunk but its end. TPOT: (E2EL -
    TTFT) / (output tokens - 1). ITL: gaps between chunks. These are the definitions of `vllm bench serve`.
    """
    if record.answered is None or record.sent_s is None or record.ended_s is None:
        return None
    e2el_s = record.ended_s - record.sent_s
    ttft_s = (record.chunks_s[0] if record.chunks_s else record.ended_s) - record.sent_s
    later_tokens = record.answered.output_tokens - 1
    return Answer(
        ttft_s,
        e2el_s,
        (e2el_s - ttft_s) / later_tokens if later_tokens > 0 else None,
        [after - before for before, after in zip(record.chunks_s, record.chunks_s[1:], strict=False)],
    )
