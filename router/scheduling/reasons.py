"""What a worker's reason for letting a holder go comes to: for its requests, and for its hand-off."""

from __future__ import annotations

from collections.abc import Mapping

from router.scheduling.happenings import HandoffOutcome
from router.scheduling.phases import Setback
from twinpool.session.messages import PrefillOutcome, ReleaseReason

RELEASED: Mapping[ReleaseReason, tuple[Setback, HandoffOutcome]] = {
    ReleaseReason.EVICTED: (Setback.EXPIRED, HandoffOutcome.ENDED),
    ReleaseReason.REVOKED: (Setback.EXPIRED, HandoffOutcome.ENDED),
    ReleaseReason.GONE: (Setback.EXPIRED, HandoffOutcome.ENDED),
    ReleaseReason.EXPIRED: (Setback.HANDOFF_FAILED, HandoffOutcome.REFUSED),
    ReleaseReason.NEVER_BEGUN: (Setback.HANDOFF_FAILED, HandoffOutcome.REFUSED),
    ReleaseReason.WRITER_GONE: (Setback.HANDOFF_FAILED, HandoffOutcome.PAIR_LOST),
    ReleaseReason.CONNECTION_ENDED: (Setback.HANDOFF_FAILED, HandoffOutcome.PAIR_LOST),
    ReleaseReason.DAMAGED: (Setback.HANDOFF_FAILED, HandoffOutcome.CHECKSUM),
    ReleaseReason.HANDOFF_FAILED: (Setback.HANDOFF_FAILED, HandoffOutcome.FAILED),
    ReleaseReason.FAILED: (Setback.ENGINE_FAILED, HandoffOutcome.ENDED),
    ReleaseReason.FAILED_ALONE: (Setback.ROW_FAILED, HandoffOutcome.ENDED),
}

PREFILL_ENDED: Mapping[PrefillOutcome, tuple[Setback, HandoffOutcome]] = {
    PrefillOutcome.REFUSED: (Setback.EXPIRED, HandoffOutcome.REFUSED),
    PrefillOutcome.PAIR_LOST: (Setback.HANDOFF_FAILED, HandoffOutcome.PAIR_LOST),
    PrefillOutcome.FAILED: (Setback.ENGINE_FAILED, HandoffOutcome.ENDED),
    PrefillOutcome.FAILED_ALONE: (Setback.ROW_FAILED, HandoffOutcome.ENDED),
}
"""The others set nothing back: after DONE the decode worker has the last word, and whoever had a prompt
STOPPED says why.
"""
