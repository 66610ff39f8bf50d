"""What goes into and comes out of the inference client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinpool.errors import InternalError
from twinpool.sampling.params import SamplingOptions
from twinpool.types import FinishReason, ServedBy, Timing, Usage

Prompt = str | Sequence[int]
"""Text, or token ids taken as they are."""


class Options(SamplingOptions, total=False):
    """What a prompt may come with. An absent or None value leaves the server's default."""

    skip_special_tokens: bool | None
    """Leave special tokens out of the text; true by default."""
    return_prompt_token_ids: bool
    """Put the prompt's token ids into the last chunk's summary; `complete` always does."""
    model: str
    """The served model's name, to be sure of it."""
    request_id: str
    """For abort and the server's log; drawn by the client by default."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What only a choice's last chunk carries. prompt_token_ids is empty unless asked for.

    num_resumes: how often another worker went on after a loss, or after the request had to make room.
    """

    usage: Usage
    timing: Timing
    workers: ServedBy
    seed: int
    prompt_token_ids: tuple[int, ...]
    num_resumes: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one choice. finish_reason and summary are set in the choice's last chunk only."""

    text: str
    token_ids: tuple[int, ...]
    choice_index: int = 0
    finish_reason: FinishReason | None = None
    summary: Summary | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timing: Timing
    workers: ServedBy
    seed: int
    prompt_token_ids: tuple[int, ...]
    num_resumes: int = 0


def completion_from(chunks: Sequence[Chunk]) -> Completion:
    """Join the chunks of one choice, in order. Raises InternalError if the last one is missing."""
    last = chunks[-1] if chunks else None
    if last is None or last.finish_reason is None or last.summary is None:
        raise InternalError("the server ended the stream without saying why")
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        finish_reason=last.finish_reason,
        usage=last.summary.usage,
        timing=last.summary.timing,
        workers=last.summary.workers,
        seed=last.summary.seed,
        prompt_token_ids=last.summary.prompt_token_ids,
        num_resumes=last.summary.num_resumes,
    )
