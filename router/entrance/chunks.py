"""What clients are told of a choice, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.types import FinishReason, ServedBy, Timing, Token, Usage


@dataclass(frozen=True, slots=True)
class Summary:
    """What a choice's last chunk carries. prompt_token_ids: empty unless asked for."""

    finish_reason: FinishReason
    usage: Usage
    timing: Timing
    workers: ServedBy
    seed: int
    prompt_token_ids: tuple[int, ...] = ()
    num_resumes: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """New text and tokens of one choice; summary is set in its last chunk only."""

    choice_index: int
    text: str
    tokens: tuple[Token, ...]
    summary: Summary | None = None
