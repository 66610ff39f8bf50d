"""gRPC statuses, with the google.rpc details in their trailers, to typed errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from twinpool import errors

_DETAILS_KEY = "grpc-status-details-bin"


class ServerUnreachable(errors.TwinpoolError):
    """No server answered at the target, or the connection broke."""

    reason = "SERVER_UNREACHABLE"


class ClientForked(errors.TwinpoolError):
    """A client, or a stream of one, was used in a forked child of the process that made it."""

    reason = "CLIENT_FORKED"


_BY_REASON: dict[str, type[errors.TwinpoolError]] = {
    kind.reason: kind
    for kind in (
        errors.ModelNotFound,
        errors.DuplicateRequestId,
        errors.QueueFull,
        errors.TooManyCalls,
        errors.PoolUnavailable,
        errors.WorkerLost,
        errors.ServerDraining,
        errors.TakenOver,
        errors.SlowReader,
        errors.RequestCancelled,
        errors.DeadlineExceeded,
        errors.InternalError,
        errors.UnsupportedModel,
        errors.ModelSourceError,
        errors.StartFailed,
        errors.NotPlaced,
        errors.TakenOver,
        errors.UnknownWorker,
    )
}

# For statuses that gRPC itself made, or a proxy: they come without details.
_BY_CODE: dict[grpc.StatusCode, type[errors.TwinpoolError]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.CANCELLED: errors.RequestCancelled,
    grpc.StatusCode.INTERNAL: errors.InternalError,
}


class _Details(NamedTuple):
    reason: str | None
    field: str | None
    retry_after_s: float | None


def typed_error(error: grpc.RpcError) -> errors.TwinpoolError:
    """The error that the server meant; the same for blocking and asynchronous calls.

    Its `reason` is the server's, or the status code's name where the server gave none.
    """
    # The stubs call a trailer an object; it is a pair.
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    details = _details_in(trailers)
    message = error.details() or error.code().name
    if details.field is not None or error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return _with_reason(errors.InvalidRequest(details.field or "", message), details.reason)
    if details.reason is None and error.code() is grpc.StatusCode.UNAVAILABLE:
        return ServerUnreachable(f"no connection to the server, is `twinpool serve` running? ({message})")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        message = "this port does not offer that: prompts go to the inference port, questions to the ops port"
    if details.reason is None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = "the deadline passed before the answer was complete"
    kind = _BY_REASON.get(details.reason or "") or _BY_CODE.get(error.code(), errors.TwinpoolError)
    typed = kind(message, retry_after_s=details.retry_after_s)
    return _with_reason(typed, details.reason or (None if error.code() in _BY_CODE else error.code().name))


def _with_reason(error: errors.TwinpoolError, reason: str | None) -> errors.TwinpoolError:
    if reason:
        error.reason = reason
    return error


def _details_in(trailers: Iterable[tuple[str, str | bytes]]) -> _Details:
    # grpc_status.rpc_status would do this, but refuses the asynchronous client's errors.
    packed = next((value for key, value in trailers if key == _DETAILS_KEY), b"")
    try:
        status = status_pb2.Status.FromString(packed if isinstance(packed, bytes) else packed.encode())
        return _unpacked(status)
    except DecodeError:
        return _Details(None, None, None)


def _unpacked(status: status_pb2.Status) -> _Details:
    reason = field = retry_after_s = None
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in status.details:
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(bad) and bad.field_violations:
            field = bad.field_violations[0].field
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return _Details(reason, field, retry_after_s)
