"""The one way in for requests, whatever transport they come over, and what comes of them.

asked ─► checked ─► tokenized ─► queued ─► tokens become text ─► a stream of chunks
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from router.dispatch.submission import Submission
from router.entrance import admission, deadlines
from router.entrance.answer_text import AnswerText
from router.entrance.arrivals import Arrivals
from router.entrance.asked import GenerationAsked
from router.entrance.caller import Caller
from router.entrance.chunk_stream import ChunkStream
from router.entrance.chunks import Chunk
from router.entrance.ports import Dispatcher
from router.entrance.preprocessor import Preprocessor
from router.entrance.text import NewDetokenizer
from router.telemetry import request_log
from twinpool.errors import DeadlineExceeded, TwinpoolError
from twinpool.types import ModelCard


class RefusalCounter(Protocol):
    """Counts requests that were not admitted."""

    def request_rejected(self, reason: str) -> None:
        """A request was refused, by the rules of admission or the queue. reason: the error's."""
        ...

    def request_expired(self, phase: str) -> None:
        """A request's deadline passed before it came to the queue."""
        ...


@dataclass(frozen=True, slots=True)
class Answering:
    """A request that is queued. chunks: its answer, as fast as it is read; fails with the request's error."""

    request_id: str
    chunks: AsyncIterator[Chunk]


class Entrance:
    """Raises typed errors. Belongs to the event loop's thread."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        preprocessor: Preprocessor,
        new_detokenizer: NewDetokenizer,
        counter: RefusalCounter,
    ) -> None:
        self._dispatcher = dispatcher
        self._preprocessor = preprocessor
        self._new_detokenizer = new_detokenizer
        self._counter = counter
        self._arrivals = Arrivals()

    @asynccontextmanager
    async def answering(
        self, asked: GenerationAsked, caller: Caller, time_left_s: float | None
    ) -> AsyncIterator[Answering]:
        """Queue a request, or refuse it with a typed error; with the context's end, it is cancelled.

        time_left_s: until its client gives up; None: it does not.
        """
        arrived_at = time.monotonic()
        request_id = asked.request_id or uuid.uuid4().hex
        with self._telling_refusals(request_id, caller):
            submission, chunks = await self._admit(
                asked, request_id, deadlines.timeout_s(time_left_s), arrived_at
            )
        try:
            yield Answering(request_id, chunks)
        finally:
            submission.leave()

    def abort(self, request_ids: Sequence[str]) -> list[bool]:
        """End requests; of each, whether it was in flight. Raises InvalidRequest."""
        admission.check_abort_ids(request_ids)
        return [self._dispatcher.abort(id_) or self._arrivals.abort(id_) for id_ in request_ids]

    async def tokenize(self, model: str, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Text to token ids. Raises InvalidRequest, ModelNotFound, QueueFull."""
        self._preprocessor.check_model(model)
        admission.check_text("text", text, self._preprocessor.limits)
        return await self._preprocessor.text.encode(text, add_special_tokens)

    async def detokenize(self, model: str, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Token ids to text. Raises InvalidRequest, ModelNotFound, QueueFull."""
        self._preprocessor.check_model(model)
        limits = self._preprocessor.limits
        admission.check_count("token_ids", len(token_ids), limits)
        admission.check_token_ids("token_ids", token_ids, limits)
        return await self._preprocessor.text.decode(tuple(token_ids), skip_special_tokens)

    def models(self) -> tuple[ModelCard, ...]:
        """The one model."""
        return (self._preprocessor.card,)

    def close(self) -> None:
        """End the threads; waits for those that are at work."""
        self._preprocessor.text.close()

    async def _admit(
        self, asked: GenerationAsked, request_id: str, timeout_s: float | None, arrived_at: float
    ) -> tuple[Submission, ChunkStream]:
        """Submit a request. It must be left; nothing may be awaited before that is sure."""
        admission.check_request_id(request_id)
        with self._arrivals.arriving(request_id) as arrival:
            request = await deadlines.in_time(self._preprocessor.prepare(asked, request_id), timeout_s)
            chunks = ChunkStream()
            text = AnswerText(
                request,
                functools.partial(self._new_detokenizer, asked.skip_special_tokens),
                chunks,
                return_prompt_ids=asked.return_prompt_token_ids,
            )
            waited_s = time.monotonic() - arrived_at
            request = replace(request, timeout_s=timeout_s, waited_s=waited_s)
            submission = self._dispatcher.submit(request, text)
        if arrival.aborted:
            self._dispatcher.abort(request_id)
        return submission, chunks

    @contextmanager
    def _telling_refusals(self, request_id: str, caller: Caller) -> Iterator[None]:
        try:
            yield
        except TwinpoolError as error:
            if isinstance(error, DeadlineExceeded):
                self._counter.request_expired(error.phase)
            else:
                self._counter.request_rejected(error.reason)
            request_log.refused(request_id, caller.peer, error)
            raise
