"""One choice's answer on its way out: the dispatcher's tokens become text, and the last chunk a summary."""

from __future__ import annotations

from router.entrance.chunks import Chunk, Summary
from router.entrance.text import IncrementalText
from router.scheduling.values import Ending, Output, Request
from twinpool.types import Usage


class Answer:
    """Turns one choice's outputs into chunks, in order."""

    def __init__(self, request: Request, detokenizer: IncrementalText, *, return_prompt_ids: bool) -> None:
        self._request = request
        self._detokenizer = detokenizer
        self._return_prompt_ids = return_prompt_ids
        self._num_tokens = 0

    def chunk(self, output: Output) -> Chunk:
        """The next chunk; the one with an ending also carries the text held back until then."""
        text = self._detokenizer.push(output.token_ids)
        self._num_tokens += len(output.token_ids)
        if output.ending is None:
            return Chunk(output.choice_index, text, output.token_ids)
        text += self._detokenizer.finish()
        return Chunk(output.choice_index, text, output.token_ids, self._summary(output.ending))

    def _summary(self, ending: Ending) -> Summary:
        return Summary(
            finish_reason=ending.finish_reason,
            usage=Usage(len(self._request.prompt_ids), self._num_tokens),
            timing=ending.timing,
            workers=ending.workers,
            seed=self._request.params.seed,
            prompt_token_ids=self._request.prompt_ids if self._return_prompt_ids else (),
            num_resumes=ending.num_resumes,
        )
