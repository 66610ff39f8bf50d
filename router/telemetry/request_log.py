"""One line, at info, for each request's end: what it took and where, never what was said.

But for refusals, which never reach it, the scheduler tells of all.
"""

from __future__ import annotations

import logging
from dataclasses import asdict

from router.scheduling.commands import SchedulerSaid
from router.scheduling.happenings import PrefillSent, RequestFailed, RequestFinished, RequestLeft
from twinpool.errors import TwinpoolError

log = logging.getLogger(__name__)


def hear(said: SchedulerSaid, _now: float) -> None:
    """The scheduler says something."""
    match said:
        case PrefillSent():
            _attempted(said)
        case RequestFinished():
            _finished(said)
        case RequestFailed():
            _failed(said)
        case RequestLeft():
            _left(said)
        case _:
            pass


def refused(request_id: str, peer: str, error: TwinpoolError) -> None:
    """It was never admitted. peer: who asked. Why in words the client knows: that may quote the request."""
    log.info(
        "request %r was refused (%s)",
        request_id[:256],
        error.reason,
        extra={"request_id": request_id[:256], "peer": peer, "error": error.reason},
    )


def _finished(end: RequestFinished) -> None:
    """Where its choices differ, how and where the last of them ended."""
    usage, ending = end.usage, end.endings[-1]
    phases = {name: round(seconds, 6) for name, seconds in asdict(ending.timing).items()}
    words = ", ".join(f"{name.removesuffix('_s')} {seconds:.3f} s" for name, seconds in phases.items())
    log.info(
        "request %s ended (%s): %d and %d tokens; %s; %s to %s, %d resumes",
        end.request_id,
        ending.finish_reason,
        usage.prompt_tokens,
        usage.completion_tokens,
        words.replace("_", " "),
        ending.workers.prefill,
        ending.workers.decode or "none",
        ending.num_resumes,
        extra={
            "request_id": end.request_id,
            "finish_reason": ending.finish_reason.value,
            **asdict(usage),
            **phases,
            "prefill": ending.workers.prefill,
            "decode": ending.workers.decode,
            "num_resumes": ending.num_resumes,
        },
    )


def _failed(end: RequestFailed) -> None:
    log.info(
        "request %s failed (%s): %s; %d and %d tokens in %.3f s",
        end.request_id,
        end.error.reason,
        end.error.message,
        end.usage.prompt_tokens,
        end.usage.completion_tokens,
        end.seconds,
        extra=_short_end(end, end.error.reason),
    )


def _left(end: RequestLeft) -> None:
    log.info(
        "request %s was left by its client: %d and %d tokens in %.3f s",
        end.request_id,
        end.usage.prompt_tokens,
        end.usage.completion_tokens,
        end.seconds,
        extra=_short_end(end, "CLIENT_LEFT"),
    )


def _short_end(end: RequestFailed | RequestLeft, error: str) -> dict[str, object]:
    duration_s = round(end.seconds, 6)
    return {"request_id": end.request_id, "error": error, **asdict(end.usage), "duration_s": duration_s}


def _attempted(sent: PrefillSent) -> None:
    """At debug, to find a request in workers' logs."""
    log.debug(
        "request %s is attempt %s of hand-off %s, at %s",
        sent.request_id,
        sent.attempt,
        sent.handoff,
        sent.worker_id,
        extra={
            "request_id": sent.request_id,
            "attempt": sent.attempt,
            "handoff": sent.handoff,
            "worker": sent.worker_id,
        },
    )
