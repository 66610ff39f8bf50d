"""The phases of a choice's life, what leads from one to another, and what sets it back."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a choice is.

        queued ─► reserving ─► prefilling ─► handing off ─► decoding ─► ended
           ▲          │             │              │            │
           └──────────┴─────────────┴──────────────┴────────────┘  refused, expired, preempted, or lost

    Whatever brings it back to the queue, the next attempt reads prompt and token log, and goes on.

    A choice with one token left goes from queued straight to prefilling, and from there to ended.
    """

    QUEUED = "queued"
    RESERVING = "reserving"
    PREFILLING = "prefilling"
    HANDING_OFF = "handing_off"
    DECODING = "decoding"
    ENDED = "ended"


LEGAL_PHASES = frozenset(
    {
        (Phase.QUEUED, Phase.RESERVING),
        (Phase.QUEUED, Phase.PREFILLING),
        (Phase.RESERVING, Phase.PREFILLING),
        (Phase.PREFILLING, Phase.HANDING_OFF),
        (Phase.HANDING_OFF, Phase.DECODING),
        (Phase.RESERVING, Phase.QUEUED),
        (Phase.PREFILLING, Phase.QUEUED),
        (Phase.HANDING_OFF, Phase.QUEUED),
        (Phase.DECODING, Phase.QUEUED),
        *((phase, Phase.ENDED) for phase in Phase if phase is not Phase.ENDED),
    }
)

TIMED_AS = {
    Phase.QUEUED: "queue_s",
    Phase.RESERVING: "queue_s",
    Phase.PREFILLING: "prefill_s",
    Phase.HANDING_OFF: "handoff_wait_s",
    Phase.DECODING: "decode_s",
}
"""Which of `Timing`'s phases a choice's time goes to; an attempt made again adds to the same ones."""


class Setback(StrEnum):
    """Why an attempt ended before its choice did. ROW_FAILED: an engine failed on it and on nothing else."""

    REFUSED = "refused"
    EXPIRED = "expired"
    PREEMPTED = "preempted"
    WORKER_LOST = "worker_lost"
    HANDOFF_FAILED = "handoff_failed"
    ENGINE_FAILED = "engine_failed"
    ROW_FAILED = "row_failed"
    DRAINED = "drained"


COUNTED = frozenset({Setback.WORKER_LOST, Setback.HANDOFF_FAILED, Setback.ENGINE_FAILED, Setback.ROW_FAILED})
"""Setbacks that use up one of a choice's attempts; the others are the system's ordinary life."""
MOST_ROW_FAILURES = 2
"""An engine that fails on one row alone may be at fault; a second one shows that the row is."""


class IllegalPhase(RuntimeError):
    """A choice was about to skip a phase of its life: a bug."""
