"""Requests whose figures are known by hand."""

from __future__ import annotations

from twinpool.bench.records import Answered, Record
from twinpool.types import Timing

THREE_TOKENS = Record(
    due_s=0.0,
    begun_s=0.0,
    sent_s=1.0,
    chunks_s=[2.0, 3.0, 5.0],
    ended_s=5.0,
    answered=Answered(10, 3, Timing(queue_s=0.5, prefill_s=0.5, handoff_wait_s=1.0, decode_s=2.0)),
)
"""TTFT 1 s, E2EL 4 s, TPOT 1.5 s, gaps of 1 s and 2 s."""
ONE_TOKEN = Record(due_s=2.0, begun_s=2.5, sent_s=2.5, chunks_s=[4.5], ended_s=4.5, answered=Answered(20, 1))
"""TTFT and E2EL 2 s; no TPOT, no gap; its sender was half a second late."""
FAILED = Record(due_s=3.0, begun_s=3.0, sent_s=3.0, ended_s=3.5, error="QUEUE_FULL: <b>full</b> & busy")
UNFINISHED = Record(due_s=4.0, begun_s=4.0, sent_s=4.0, chunks_s=[4.25])
"""At four seconds three requests are sent and not over."""
RECORDS = (THREE_TOKENS, ONE_TOKEN, FAILED, UNFINISHED, Record(due_s=9.0))
