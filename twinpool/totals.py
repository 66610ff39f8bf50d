"""What has happened since the router began, in a few sums: enough for rates and means between two looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    """Every figure only grows, so that two looks make a rate or a mean. The router's `Metrics` keeps the one
    that counts; all others, clients' included, are copies.

    uptime_s: seconds the router has run, set in copies. requests_finished: ended well, aborted ones included.
    requests_failed: ended with an error. requests_left: by their client, before the end.
    requests_rejected: never admitted. ttft_sum_s: of all first_tokens. token_gap_sum_s: of all token_gaps.
    generation_tokens: sent to clients. prefill_tokens: read by prefill workers, for canaries and resumed
    requests too.
    """

    uptime_s: float = 0.0
    requests_admitted: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    requests_left: int = 0
    requests_rejected: int = 0
    first_tokens: int = 0
    ttft_sum_s: float = 0.0
    token_gaps: int = 0
    token_gap_sum_s: float = 0.0
    generation_tokens: int = 0
    prefill_tokens: int = 0
    resumes: int = 0
    preemptions: int = 0
    worker_restarts: int = 0
