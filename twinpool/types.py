"""The values that travel between Twinpool's parts: requests, choices' fates, usage and timing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, TypeAlias

HandoffId = NewType("HandoffId", str)
"""Of one reading of a prompt and the one cache that comes of it: one writer, one lease, for one attempt or
several. Unique for all time.
"""
AttemptId = NewType("AttemptId", str)
"""Of one try of one choice, from placing to release. Unique for all time, and no hand-off's."""
HolderId: TypeAlias = HandoffId | AttemptId
"""Of whoever holds blocks: a hand-off until its attempts are admitted; from its `Admit` on, each attempt."""


class Pool(StrEnum):
    """Which half of the work a worker does."""

    PREFILL = "prefill"
    DECODE = "decode"


class FinishReason(StrEnum):
    """Why a choice ended well."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class WorkerState(StrEnum):
    """Where a worker is in its life; see `router.pools.keeper` for the transitions."""

    WAITING_FOR_NODE = "waiting_for_node"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that might have been drawn. logprob: natural logarithm of its probability."""

    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """A drawn token, from the sampler to the client's chunk.

    logprob: natural logarithm of its probability; None unless asked for. top: the most likely tokens there,
    the likeliest first; empty unless asked for.
    """

    id: int
    logprob: float | None = None
    top: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class HandoffEndpoint:
    """Where a decode worker takes hand-offs; an empty field means that way is not offered."""

    unix_path: str = ""
    actor_name: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one choice."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds by the router's clock; the four phases sum to the request's duration."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    handoff_wait_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServedBy:
    """Ids of the workers of the last attempt; decode is None where there was no hand-off."""

    prefill: str
    decode: str | None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What clients may know of the served model."""

    name: str
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
