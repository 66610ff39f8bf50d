"""A client that reads in a thread of its own, so that a test can strike it, or a worker, meanwhile."""

from __future__ import annotations

import threading

from tests.support.models.reference import ReferenceCase
from tests.support.system.running import RunningSystem
from twinpool.client.values import Summary
from twinpool.errors import TwinpoolError
from twinpool.types import FinishReason

ANSWER_S = 60.0


class Asking:
    """One request, greedy and past the end of sequence, sent when made.

    tokens: what has come. finish_reason, summary, error: how it ended.
    """

    def __init__(
        self, system: RunningSystem, case: ReferenceCase, num_tokens: int, timeout_s: float = ANSWER_S
    ) -> None:
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.error: TwinpoolError | None = None
        self.summary: Summary | None = None
        self._expected = case.output_ids[:num_tokens]
        self._stream = system.client.generate(
            case.prompt_ids, max_tokens=num_tokens, temperature=0.0, ignore_eos=True, timeout=timeout_s
        )
        self.request_id = self._stream.request_id
        self._thread = threading.Thread(target=self._read, name="client", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Hang up."""
        self._stream.close()

    def end(self) -> None:
        """Wait for the end of the stream."""
        self._thread.join(ANSWER_S)
        assert not self._thread.is_alive()

    @property
    def answered_exactly(self) -> bool:
        """All tokens came, and they are the reference's."""
        return self.error is None and tuple(self.tokens) == self._expected

    @property
    def begins_exactly(self) -> bool:
        """What came is how the reference's answer begins."""
        return tuple(self.tokens) == self._expected[: len(self.tokens)]

    def __repr__(self) -> str:
        return f"{self.tokens} of {self._expected}, {self.finish_reason}, {self.error!r}"

    def _read(self) -> None:
        try:
            for chunk in self._stream:
                self.tokens += chunk.token_ids
                self.finish_reason = chunk.finish_reason
                self.summary = chunk.summary
        except TwinpoolError as error:
            self.error = error
