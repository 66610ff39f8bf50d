"""Watches what a scheduler says about each request, and knows independently what it may say."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.scheduling.phases import COUNTED, Setback
from router.scheduling.values import Output, Request
from tests.support.simulation.workers import EOS
from twinpool.errors import DeadlineExceeded, InternalError, TwinpoolError, WorkerLost
from twinpool.sampling.params import SamplingParams
from twinpool.types import FinishReason


@dataclass(frozen=True, slots=True)
class Answer:
    """What an undisturbed run would produce for one prompt. num_tokens: before end of sequence, if any.

    poison_at: the position at which every engine fails on it, if any.
    """

    prompt: int
    num_tokens: int | None
    poison_at: int | None = None

    def token(self, position: int) -> int:
        if position == self.num_tokens:
            return EOS
        return 1 + (31 * self.prompt + 7 * position) % 97

    def tokens(self, params: SamplingParams) -> list[int]:
        tokens = [self.token(position) for position in range(params.max_tokens)]
        if EOS in tokens and not params.ignore_eos:
            return tokens[: tokens.index(EOS) + 1]
        return tokens


@dataclass(slots=True)
class Watched:
    """One request and all that has been said about it.

    may_fail: something was lost that it may have needed. num_failed: attempts that failed and were made
    again. goes_on: tokens of its newest attempt have come. num_resumes: attempts of which tokens came after
    those of earlier ones. row_failed: attempts on which an engine was heard to fail alone. overtaken_at: when
    one behind it in the queue was first placed before it, while it waits.
    """

    request: Request
    answer: Answer
    arrived_at: float
    may_fail: bool = False
    num_failed: int = 0
    row_failed: set[str] = field(default_factory=set)
    goes_on: bool = False
    num_resumes: int = 0
    log: list[int] = field(default_factory=list)
    ended: bool = False
    left: bool = False
    aborted: bool = False
    overtaken_at: float | None = None

    @property
    def is_canary(self) -> bool:
        return self.request.pair is not None

    @property
    def most_tokens(self) -> int:
        """Of prompt and answer."""
        return len(self.request.prompt_ids) + self.request.params.max_tokens

    def hear(self, output: Output, now: float) -> None:
        """Tokens came: the next ones of the answer, in order; an ending is the last word."""
        assert not self.ended, "nothing follows the terminal event"
        assert not self.left, "nothing follows a cancel"
        whole = self.answer.tokens(self.request.params)
        if output.tokens:
            self.num_resumes += bool(self.log) and not self.goes_on
            self.goes_on = True
        self.log += [token.id for token in output.tokens]
        assert self.log == whole[: len(self.log)]
        if output.ending is None:
            assert output.tokens
            assert len(self.log) < len(whole)
            return
        self.ended = True
        timing = output.ending.timing
        phases = (timing.queue_s, timing.prefill_s, timing.handoff_wait_s, timing.decode_s)
        assert all(seconds >= 0 for seconds in phases)
        assert sum(phases) == now - self.arrived_at
        assert output.ending.num_resumes == self.num_resumes
        reason = output.ending.finish_reason
        if reason is FinishReason.ABORT:
            assert self.aborted
            assert not output.tokens
            return
        assert self.log == whole
        assert reason is (FinishReason.STOP if self._stops(whole) else FinishReason.LENGTH)

    def set_back(self, setback: Setback, most_attempts: int, *, resumed: bool) -> None:
        """An attempt is made again: to be resumed, if tokens of it had come; a failure needs a loss."""
        assert not self.ended
        assert not self.left
        assert resumed == self.goes_on
        self.goes_on = False
        if setback in COUNTED:
            assert self._may_fail_now, setback
            assert not self.is_canary
            self.num_failed += 1
            assert self.num_failed < most_attempts

    def fail(self, error: TwinpoolError, now: float, most_attempts: int) -> None:
        """It failed: its deadline has passed, all its attempts failed, or engines did on it and nothing else.

        A canary's first attempt may.
        """
        assert not self.ended, "nothing follows the terminal event"
        assert not self.left, "nothing follows a cancel"
        self.ended = True
        if isinstance(error, DeadlineExceeded):
            assert self.request.timeout_s is not None
            assert now >= self.arrived_at + self.request.timeout_s
            return
        if isinstance(error, InternalError):
            assert self._may_fail_now
            assert not self.is_canary
            assert len(self.row_failed) == 2 or (self.row_failed and self.num_failed == most_attempts - 1)
            return
        assert isinstance(error, WorkerLost)
        assert self.is_canary or (self._may_fail_now and self.num_failed == most_attempts - 1), error.message

    @property
    def _may_fail_now(self) -> bool:
        return self.may_fail or len(self.log) == self.answer.poison_at

    def _stops(self, whole: list[int]) -> bool:
        return whole[-1] == EOS and not self.request.params.ignore_eos
