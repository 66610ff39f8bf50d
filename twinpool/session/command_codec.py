"""Turns what the router tells workers into protobuf and back."""

from __future__ import annotations

from twinpool.session import messages as m
from twinpool.session.wire_values import UnknownMessage, endpoint_from_pb, endpoint_to_pb
from twinpool.types import RowParams
from twinpool.v1 import worker_pb2 as pb


def command_to_pb(command: m.Command) -> pb.SessionRequest:
    """A router's command, for the wire."""
    match command:
        case m.JoinPair(decode, endpoint):
            return pb.SessionRequest(join_pair=pb.JoinPair(decode=decode, endpoint=endpoint_to_pb(endpoint)))
        case m.LeavePair(decode):
            return pb.SessionRequest(leave_pair=pb.LeavePair(decode=decode))
        case m.Prefill():
            return pb.SessionRequest(prefill=_prefill_to_pb(command))
        case m.CancelPrefill(attempt):
            return pb.SessionRequest(cancel_prefill=pb.CancelPrefill(attempt=attempt))
        case m.Reserve(attempt, num_tokens, writer, ttl_s):
            return pb.SessionRequest(
                reserve=pb.Reserve(attempt=attempt, num_tokens=num_tokens, writer=writer, ttl_s=ttl_s)
            )
        case m.Revoke(attempt):
            return pb.SessionRequest(revoke=pb.Revoke(attempt=attempt))
        case m.Admit():
            return pb.SessionRequest(admit=_admit_to_pb(command))
        case m.Evict(attempt):
            return pb.SessionRequest(evict=pb.Evict(attempt=attempt))
        case m.WriterGone(writer):
            return pb.SessionRequest(writer_gone=pb.WriterGone(writer=writer))
        case m.Audit(audit_id):
            return pb.SessionRequest(audit=pb.Audit(audit_id=audit_id))
        case m.MoveRow(attempt, to, decode):
            return pb.SessionRequest(move_row=pb.MoveRow(attempt=attempt, to=to, decode=decode))


def command_from_pb(request: pb.SessionRequest) -> m.Command:
    """A router's command, off the wire. Raises UnknownMessage."""
    match request.WhichOneof("command"):
        case "join_pair":
            return m.JoinPair(request.join_pair.decode, endpoint_from_pb(request.join_pair.endpoint))
        case "leave_pair":
            return m.LeavePair(request.leave_pair.decode)
        case "prefill":
            return _prefill_from_pb(request.prefill)
        case "cancel_prefill":
            return m.CancelPrefill(request.cancel_prefill.attempt)
        case "reserve":
            reserve = request.reserve
            return m.Reserve(reserve.attempt, reserve.num_tokens, reserve.writer, reserve.ttl_s)
        case "revoke":
            return m.Revoke(request.revoke.attempt)
        case "admit":
            return _admit_from_pb(request.admit)
        case "evict":
            return m.Evict(request.evict.attempt)
        case "writer_gone":
            return m.WriterGone(request.writer_gone.writer)
        case "audit":
            return m.Audit(request.audit.audit_id)
        case "move_row":
            move = request.move_row
            return m.MoveRow(move.attempt, move.to, move.decode)
        case other:
            raise UnknownMessage(f"unknown command {other!r}")


def _params_to_pb(params: RowParams) -> pb.RowParams:
    return pb.RowParams(
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed,
        ignore_eos=params.ignore_eos,
    )


def _params_from_pb(params: pb.RowParams) -> RowParams:
    return RowParams(
        params.max_tokens, params.temperature, params.top_k, params.top_p, params.seed, params.ignore_eos
    )


def _prefill_to_pb(prefill: m.Prefill) -> pb.Prefill:
    return pb.Prefill(
        attempt=prefill.attempt,
        choice_index=prefill.choice_index,
        prompt_ids=prefill.prompt_ids,
        output_ids=prefill.output_ids,
        params=_params_to_pb(prefill.params),
        decode=prefill.decode or "",
        arrival=prefill.arrival,
    )


def _prefill_from_pb(prefill: pb.Prefill) -> m.Prefill:
    return m.Prefill(
        prefill.attempt,
        prefill.choice_index,
        tuple(prefill.prompt_ids),
        tuple(prefill.output_ids),
        _params_from_pb(prefill.params),
        prefill.decode or None,
        prefill.arrival,
    )


def _admit_to_pb(admit: m.Admit) -> pb.Admit:
    return pb.Admit(
        attempt=admit.attempt,
        choice_index=admit.choice_index,
        num_prompt_tokens=admit.num_prompt_tokens,
        output_ids=admit.output_ids,
        params=_params_to_pb(admit.params),
    )


def _admit_from_pb(admit: pb.Admit) -> m.Admit:
    return m.Admit(
        admit.attempt,
        admit.choice_index,
        admit.num_prompt_tokens,
        tuple(admit.output_ids),
        _params_from_pb(admit.params),
    )
