"""The one table from error types to gRPC status codes, and the google.rpc details that go with them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import grpc
from google.protobuf import duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from twinpool import errors

DOMAIN = "twinpool"
# Trailers share one limit of 8 kB in common clients and proxies, and the message stands in them three times:
# once with up to three bytes for each of its own, and twice in the details, in base64.
MAX_MESSAGE_BYTES = 1024

CODES: Mapping[type[errors.TwinpoolError], grpc.StatusCode] = MappingProxyType(
    {
        errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
        errors.ModelNotFound: grpc.StatusCode.NOT_FOUND,
        errors.DuplicateRequestId: grpc.StatusCode.ALREADY_EXISTS,
        errors.QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
        errors.TooManyCalls: grpc.StatusCode.RESOURCE_EXHAUSTED,
        errors.SlowReader: grpc.StatusCode.RESOURCE_EXHAUSTED,
        errors.PoolUnavailable: grpc.StatusCode.UNAVAILABLE,
        errors.WorkerLost: grpc.StatusCode.UNAVAILABLE,
        errors.ServerDraining: grpc.StatusCode.UNAVAILABLE,
        errors.UnknownWorker: grpc.StatusCode.NOT_FOUND,
        errors.NotPlaced: grpc.StatusCode.UNAVAILABLE,
        errors.StartFailed: grpc.StatusCode.UNAVAILABLE,
        errors.TakenOver: grpc.StatusCode.UNAVAILABLE,
        errors.RequestCancelled: grpc.StatusCode.CANCELLED,
        errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
        errors.UnsupportedModel: grpc.StatusCode.FAILED_PRECONDITION,
        errors.ModelSourceError: grpc.StatusCode.FAILED_PRECONDITION,
        errors.InternalError: grpc.StatusCode.INTERNAL,
    }
)

Trailers = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class CallStatus:
    """How a call ends for its client. log_id: set where the server's log must explain it."""

    code: grpc.StatusCode
    message: str
    trailers: Trailers
    log_id: str | None = None


def call_status(error: Exception) -> CallStatus:
    """Turn any exception into a status; one that the table does not know is a bug and stays opaque."""
    if not isinstance(error, errors.TwinpoolError):
        return _opaque()
    code = CODES.get(type(error), grpc.StatusCode.INTERNAL)
    if code is grpc.StatusCode.INTERNAL:
        return _opaque()
    message = error.message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    status = _status(code, message, error_info(error.reason))
    if isinstance(error, errors.InvalidRequest) and error.field:
        _add_field(status, error.field, message)
    if error.retry_after_s is None:
        return CallStatus(code, message, _trailers(status))
    _add_retry(status, error.retry_after_s)
    pushback = ("grpc-retry-pushback-ms", str(round(error.retry_after_s * 1000)))
    return CallStatus(code, message, (*_trailers(status), pushback))


def error_info(reason: str, **metadata: str) -> error_details_pb2.ErrorInfo:
    """The detail that every failed call carries."""
    return error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)


def _opaque() -> CallStatus:
    log_id = uuid.uuid4().hex[:12]
    message = f"internal error; the server's log has the details under {log_id}"
    info = error_info(errors.InternalError.reason, log_id=log_id)
    status = _status(grpc.StatusCode.INTERNAL, message, info)
    return CallStatus(grpc.StatusCode.INTERNAL, message, _trailers(status), log_id)


def _status(code: grpc.StatusCode, message: str, info: error_details_pb2.ErrorInfo) -> status_pb2.Status:
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=message)
    status.details.add().Pack(info)
    return status


def _add_field(status: status_pb2.Status, field: str, description: str) -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))


def _add_retry(status: status_pb2.Status, retry_after_s: float) -> None:
    delay = duration_pb2.Duration()
    delay.FromMilliseconds(round(retry_after_s * 1000))
    status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))


def _trailers(status: status_pb2.Status) -> Trailers:
    return (("grpc-status-details-bin", status.SerializeToString()),)
