"""An answer's text, before its stream: tokens become text as they come, whether anybody reads or not.

    dispatcher ─► AnswerText.put ─► (the loop's next turn) ─► text ─► ChunkStream ─► the client, as it reads

What depends on text is known here as soon as the tokens are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.entrance.chunk_stream import ChunkStream
from router.entrance.chunks import Chunk, Summary
from router.entrance.text import IncrementalText
from router.scheduling.values import Ending, Output, Request
from twinpool.errors import TwinpoolError
from twinpool.types import Token


class AnswerText:
    """The dispatcher's `Sink` of one request. Belongs to the event loop's thread.

    Putting notes the tokens and no more: a step's commands to workers go out before any of its text is made.
    All tokens of a choice that have come meanwhile become text together. That takes microseconds (a thread
    would cost more to wake), and tokens never pile up here for a reader.
    """

    def __init__(
        self,
        request: Request,
        new_detokenizer: Callable[[], IncrementalText],
        stream: ChunkStream,
        *,
        return_prompt_ids: bool,
    ) -> None:
        self._request = request
        self._new_detokenizer = new_detokenizer
        self._stream = stream
        self._return_prompt_ids = return_prompt_ids
        self._loop = asyncio.get_running_loop()
        self._detokenizers: dict[int, IncrementalText] = {}
        self._tokens: dict[int, list[Token]] = {}
        self._endings: dict[int, Ending] = {}
        self._complete = False
        self._error: TwinpoolError | None = None
        self._awake = False

    def put(self, output: Output, *, last: bool) -> None:
        """Take new tokens of a choice, or its end. last: nothing of any choice follows."""
        self._tokens.setdefault(output.choice_index, []).extend(output.tokens)
        if output.ending is not None:
            self._endings[output.choice_index] = output.ending
        self._complete = last
        self._wake()

    def fail(self, error: TwinpoolError) -> None:
        """End with an error, after the tokens there are."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._advance)

    def _advance(self) -> None:
        self._awake = False
        tokens, self._tokens = self._tokens, {}
        if self._stream.ended:
            return
        try:
            for nth, (index, new) in enumerate(tokens.items(), start=1):
                chunk = self._chunk(index, tuple(new), self._endings.get(index))
                self._stream.put(chunk, last=self._complete and nth == len(tokens))
        except Exception as bug:  # noqa: BLE001 - nobody awaits us: the reader is who must hear of it
            self._stream.fail(bug)
        else:
            if self._error is not None:
                self._stream.fail(self._error)

    def _chunk(self, index: int, tokens: tuple[Token, ...], ending: Ending | None) -> Chunk:
        """The one with an ending also carries the text held back until then."""
        if index not in self._detokenizers:
            self._detokenizers[index] = self._new_detokenizer()
        detokenizer = self._detokenizers[index]
        text = detokenizer.push([token.id for token in tokens])
        if ending is None:
            return Chunk(index, text, tokens)
        return Chunk(index, text + detokenizer.finish(), tokens, self._summary(ending))

    def _summary(self, ending: Ending) -> Summary:
        return Summary(
            finish_reason=ending.finish_reason,
            usage=ending.usage,
            timing=ending.timing,
            workers=ending.workers,
            seed=self._request.params.seed,
            prompt_token_ids=self._request.prompt_ids if self._return_prompt_ids else (),
            num_resumes=ending.num_resumes,
        )
