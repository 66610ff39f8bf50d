"""Turns what workers tell the router into protobuf and back."""

from __future__ import annotations

from twinpool.session import messages as m
from twinpool.session.wire_values import UnknownMessage, endpoint_from_pb, endpoint_to_pb, known
from twinpool.types import FinishReason, Pool
from twinpool.v1 import worker_pb2 as pb

_OUTCOME_TO_PB = {
    m.PrefillOutcome.DONE: pb.PREFILL_OUTCOME_DONE,
    m.PrefillOutcome.STOPPED: pb.PREFILL_OUTCOME_STOPPED,
    m.PrefillOutcome.REFUSED: pb.PREFILL_OUTCOME_REFUSED,
    m.PrefillOutcome.PAIR_LOST: pb.PREFILL_OUTCOME_PAIR_LOST,
    m.PrefillOutcome.FAILED: pb.PREFILL_OUTCOME_FAILED,
}
_OUTCOME_FROM_PB = {value: key for key, value in _OUTCOME_TO_PB.items()}

_REASON_TO_PB = {
    m.ReleaseReason.EVICTED: pb.RELEASE_REASON_EVICTED,
    m.ReleaseReason.REVOKED: pb.RELEASE_REASON_REVOKED,
    m.ReleaseReason.EXPIRED: pb.RELEASE_REASON_EXPIRED,
    m.ReleaseReason.HANDOFF_FAILED: pb.RELEASE_REASON_HANDOFF_FAILED,
    m.ReleaseReason.GONE: pb.RELEASE_REASON_GONE,
    m.ReleaseReason.FAILED: pb.RELEASE_REASON_FAILED,
}
_REASON_FROM_PB = {value: key for key, value in _REASON_TO_PB.items()}

_POOLS: dict[str, Pool] = {pool.value: pool for pool in Pool}
_FINISH_REASONS: dict[str, FinishReason] = {reason.value: reason for reason in FinishReason}


def event_to_pb(event: m.Event) -> pb.SessionResponse:
    """A worker's event, for the wire."""
    match event:
        case m.Hello():
            return pb.SessionResponse(hello=_hello_to_pb(event))
        case m.PairJoined(decode, transport):
            return pb.SessionResponse(pair_joined=pb.PairJoined(decode=decode, transport=transport))
        case m.PairBroken(decode, reason):
            return pb.SessionResponse(pair_broken=pb.PairBroken(decode=decode, reason=reason))
        case m.FirstToken():
            return pb.SessionResponse(first_token=_first_token_to_pb(event))
        case m.PrefillEnded(attempt, outcome, detail, load):
            ended = pb.PrefillEnded(
                attempt=attempt, outcome=_OUTCOME_TO_PB[outcome], detail=detail, load=_load_to_pb(load)
            )
            return pb.SessionResponse(prefill_ended=ended)
        case m.Granted(attempt, load):
            return pb.SessionResponse(granted=pb.Granted(attempt=attempt, load=_load_to_pb(load)))
        case m.Refused(attempt, load):
            return pb.SessionResponse(refused=pb.Refused(attempt=attempt, load=_load_to_pb(load)))
        case m.Written(attempt, num_bytes, handoff_s):
            written = pb.Written(attempt=attempt, num_bytes=num_bytes, handoff_s=handoff_s)
            return pb.SessionResponse(written=written)
        case m.Released(attempt, reason, detail, load):
            released = pb.Released(
                attempt=attempt, reason=_REASON_TO_PB[reason], detail=detail, load=_load_to_pb(load)
            )
            return pb.SessionResponse(released=released)
        case m.StepDone():
            return pb.SessionResponse(step_done=_step_to_pb(event))
        case m.PrefillStep(num_prompts, num_tokens, step_s):
            stepped = pb.PrefillStep(num_prompts=num_prompts, num_tokens=num_tokens, step_s=step_s)
            return pb.SessionResponse(prefill_step=stepped)
        case m.RowsPaused(attempts, load):
            paused = pb.RowsPaused(attempts=attempts, load=_load_to_pb(load))
            return pb.SessionResponse(rows_paused=paused)
        case m.RowMoved(attempt, to, position):
            moved = pb.RowMoved(attempt=attempt, to=to, position=position)
            return pb.SessionResponse(row_moved=moved)
        case m.MoveFailed(attempt, to, detail):
            failed = pb.MoveFailed(attempt=attempt, to=to, detail=detail)
            return pb.SessionResponse(move_failed=failed)
        case m.QuarantineOverdue(attempt, writer):
            return pb.SessionResponse(quarantine_overdue=pb.QuarantineOverdue(attempt=attempt, writer=writer))
        case m.Audited():
            return pb.SessionResponse(audited=_audited_to_pb(event))
        case m.LoadReport():
            return pb.SessionResponse(load=_load_to_pb(event))


def event_from_pb(response: pb.SessionResponse) -> m.Event:
    """A worker's event, off the wire. Raises UnknownMessage."""
    match response.WhichOneof("event"):
        case "hello":
            return _hello_from_pb(response.hello)
        case "pair_joined":
            return m.PairJoined(response.pair_joined.decode, response.pair_joined.transport)
        case "pair_broken":
            return m.PairBroken(response.pair_broken.decode, response.pair_broken.reason)
        case "first_token":
            return _first_token_from_pb(response.first_token)
        case "prefill_ended":
            ended = response.prefill_ended
            outcome = known(_OUTCOME_FROM_PB, ended.outcome, "prefill outcome")
            return m.PrefillEnded(ended.attempt, outcome, ended.detail, _load_from_pb(ended.load))
        case "granted":
            return m.Granted(response.granted.attempt, _load_from_pb(response.granted.load))
        case "refused":
            return m.Refused(response.refused.attempt, _load_from_pb(response.refused.load))
        case "written":
            written = response.written
            return m.Written(written.attempt, written.num_bytes, written.handoff_s)
        case "released":
            gone = response.released
            reason = known(_REASON_FROM_PB, gone.reason, "release reason")
            return m.Released(gone.attempt, reason, gone.detail, _load_from_pb(gone.load))
        case "step_done":
            return _step_from_pb(response.step_done)
        case "prefill_step":
            stepped = response.prefill_step
            return m.PrefillStep(stepped.num_prompts, stepped.num_tokens, stepped.step_s)
        case "rows_paused":
            paused = response.rows_paused
            return m.RowsPaused(tuple(paused.attempts), _load_from_pb(paused.load))
        case "row_moved":
            moved = response.row_moved
            return m.RowMoved(moved.attempt, moved.to, moved.position)
        case "move_failed":
            failed = response.move_failed
            return m.MoveFailed(failed.attempt, failed.to, failed.detail)
        case "quarantine_overdue":
            return m.QuarantineOverdue(
                response.quarantine_overdue.attempt, response.quarantine_overdue.writer
            )
        case "audited":
            return _audited_from_pb(response.audited)
        case "load":
            return _load_from_pb(response.load)
        case other:
            raise UnknownMessage(f"unknown event {other!r}")


def _finish_from_pb(reason: str) -> FinishReason | None:
    return known(_FINISH_REASONS, reason, "finish reason") if reason else None


def _hello_to_pb(hello: m.Hello) -> pb.Hello:
    return pb.Hello(
        pool=hello.pool,
        incarnation=hello.incarnation,
        pid=hello.pid,
        blocks_total=hello.blocks_total,
        block_size=hello.block_size,
        kv_bytes=hello.kv_bytes,
        endpoint=endpoint_to_pb(hello.endpoint),
    )


def _hello_from_pb(hello: pb.Hello) -> m.Hello:
    return m.Hello(
        known(_POOLS, hello.pool, "pool"),
        hello.incarnation,
        hello.pid,
        hello.blocks_total,
        hello.block_size,
        hello.kv_bytes,
        endpoint_from_pb(hello.endpoint),
    )


def _first_token_to_pb(first: m.FirstToken) -> pb.FirstToken:
    return pb.FirstToken(
        attempt=first.attempt,
        position=first.position,
        token=first.token,
        finish_reason=first.finish_reason or "",
        num_computed_tokens=first.num_computed_tokens,
    )


def _first_token_from_pb(first: pb.FirstToken) -> m.FirstToken:
    return m.FirstToken(
        first.attempt,
        first.position,
        first.token,
        _finish_from_pb(first.finish_reason),
        first.num_computed_tokens,
    )


def _step_to_pb(step: m.StepDone) -> pb.StepDone:
    tokens = [
        pb.RowToken(
            attempt=row.attempt, position=row.position, token=row.token, finish_reason=row.finish_reason or ""
        )
        for row in step.tokens
    ]
    return pb.StepDone(step=step.step, tokens=tokens, step_s=step.step_s, load=_load_to_pb(step.load))


def _step_from_pb(step: pb.StepDone) -> m.StepDone:
    tokens = tuple(
        m.RowToken(row.attempt, row.position, row.token, _finish_from_pb(row.finish_reason))
        for row in step.tokens
    )
    return m.StepDone(step.step, tokens, step.step_s, _load_from_pb(step.load))


def _audited_to_pb(audited: m.Audited) -> pb.Audited:
    blocks = audited.blocks
    return pb.Audited(
        audit_id=audited.audit_id,
        blocks=pb.BlockCounts(
            free=blocks.free,
            reserved=blocks.reserved,
            rows=blocks.rows,
            cached=blocks.cached,
            quarantined=blocks.quarantined,
        ),
        held=[
            pb.HeldAttempt(
                attempt=held.attempt, stage=held.stage, num_blocks=held.num_blocks, age_s=held.age_s
            )
            for held in audited.held
        ],
        problems=audited.problems,
    )


def _audited_from_pb(audited: pb.Audited) -> m.Audited:
    blocks = audited.blocks
    return m.Audited(
        audited.audit_id,
        m.BlockCounts(blocks.free, blocks.reserved, blocks.rows, blocks.cached, blocks.quarantined),
        tuple(m.HeldAttempt(held.attempt, held.stage, held.num_blocks, held.age_s) for held in audited.held),
        tuple(audited.problems),
    )


def _load_to_pb(load: m.LoadReport) -> pb.LoadReport:
    return pb.LoadReport(
        running=load.running,
        waiting=load.waiting,
        blocks_free=load.blocks_free,
        blocks_quarantined=load.blocks_quarantined,
        handoffs=load.handoffs,
        blocks_cached=load.blocks_cached,
        progress=load.progress,
        step_s=load.step_s,
        cpu_s=load.cpu_s,
        rss_bytes=load.rss_bytes,
    )


def _load_from_pb(load: pb.LoadReport) -> m.LoadReport:
    return m.LoadReport(
        load.running,
        load.waiting,
        load.blocks_free,
        load.blocks_quarantined,
        load.handoffs,
        load.blocks_cached,
        load.progress,
        load.step_s,
        load.cpu_s,
        load.rss_bytes,
    )
