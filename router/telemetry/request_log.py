"""One line, at info, for each request's end: what it took and where, never what was said."""

from __future__ import annotations

import logging
from dataclasses import asdict

from router.scheduling.values import Ending
from twinpool.errors import TwinpoolError
from twinpool.types import Usage

log = logging.getLogger(__name__)


def finished(request_id: str, usage: Usage, ending: Ending) -> None:
    """It ended well."""
    phases = {name: round(seconds, 6) for name, seconds in asdict(ending.timing).items()}
    words = ", ".join(f"{name.removesuffix('_s')} {seconds:.3f} s" for name, seconds in phases.items())
    log.info(
        "request %s ended (%s): %d and %d tokens; %s; %s to %s, %d resumes",
        request_id,
        ending.finish_reason,
        usage.prompt_tokens,
        usage.completion_tokens,
        words.replace("_", " "),
        ending.workers.prefill,
        ending.workers.decode or "none",
        ending.num_resumes,
        extra={
            "request_id": request_id,
            "finish_reason": ending.finish_reason.value,
            **asdict(usage),
            **phases,
            "prefill": ending.workers.prefill,
            "decode": ending.workers.decode,
            "num_resumes": ending.num_resumes,
        },
    )


def failed(request_id: str, usage: Usage, seconds: float, error: TwinpoolError) -> None:
    """It ended with an error, so many seconds after its arrival."""
    log.info(
        "request %s failed (%s): %s; %d and %d tokens in %.3f s",
        request_id,
        error.reason,
        error.message,
        usage.prompt_tokens,
        usage.completion_tokens,
        seconds,
        extra={
            "request_id": request_id,
            "error": error.reason,
            **asdict(usage),
            "duration_s": round(seconds, 6),
        },
    )


def left(request_id: str, usage: Usage, seconds: float) -> None:
    """Its client has gone."""
    log.info(
        "request %s was left by its client: %d and %d tokens in %.3f s",
        request_id,
        usage.prompt_tokens,
        usage.completion_tokens,
        seconds,
        extra={
            "request_id": request_id,
            "error": "CLIENT_LEFT",
            **asdict(usage),
            "duration_s": round(seconds, 6),
        },
    )


def refused(request_id: str, peer: str, error: TwinpoolError) -> None:
    """It was never admitted. peer: who asked. Why in words the client knows: that may quote the request."""
    log.info(
        "request %r was refused (%s)",
        request_id[:256],
        error.reason,
        extra={"request_id": request_id[:256], "peer": peer, "error": error.reason},
    )


def attempted(request_id: str, attempt: str, worker_id: str) -> None:
    """A prefill worker has got it; at debug, to find a request in workers' logs."""
    log.debug(
        "request %s is attempt %s, at %s",
        request_id,
        attempt,
        worker_id,
        extra={"request_id": request_id, "attempt": attempt, "worker": worker_id},
    )
