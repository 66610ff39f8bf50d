"""What one engine step computes: chunks of prompts, rows of a decode batch, and how a token is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinpool.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How one next token is drawn.

    choice_index: which of a request's n answers; part of the random number's key.
    position: index of the token to be drawn in prompt + output, counted from 0.
    """

    params: SamplingParams
    choice_index: int
    position: int


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive tokens of one prompt, computed in one step.

    token_ids: the chunk, at least one token.
    start: prompt tokens whose keys and values the cache already holds.
    block_table: block ids in order, enough for start + len(token_ids) tokens; the caller owns them.
    sample: set where the chunk ends its prompt, so that the first token is drawn.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sample: SamplingRow | None = None


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One running choice in a decode step.

    token_id: the newest token, whose keys and values are not in the cache yet.
    position: its index in prompt + output, counted from 0; the cache holds the tokens before it.
    block_table: block ids in order, enough for position + 1 tokens; the caller owns them.
    """

    token_id: int
    position: int
    block_table: Sequence[int]
    sample: SamplingRow
