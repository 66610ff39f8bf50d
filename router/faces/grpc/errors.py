"""Errors as gRPC statuses, with the google.rpc details that go with them."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.protobuf import duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from router.entrance.codes import code_of
from twinpool.errors import InternalError, InvalidRequest, TwinpoolError

DOMAIN = "twinpool"
# Trailers share one limit of 8 kB in common clients and proxies, and the message stands in them three times:
# once with up to three bytes for each of its own, and twice in the details, in base64.
MAX_MESSAGE_BYTES = 1024

Trailers = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class CallStatus:
    """How a call ends for its client."""

    code: grpc.StatusCode
    message: str
    trailers: Trailers


def call_status(error: TwinpoolError) -> CallStatus:
    """Write an error that may be told to clients."""
    code = grpc.StatusCode[code_of(error)]
    message = error.message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    about = {"log_id": error.log_id} if isinstance(error, InternalError) else {}
    status = _status(code, message, error_info(error.reason, **about))
    if isinstance(error, InvalidRequest) and error.field:
        _add_field(status, error.field, message)
    if error.retry_after_s is None:
        return CallStatus(code, message, _trailers(status))
    _add_retry(status, error.retry_after_s)
    pushback = ("grpc-retry-pushback-ms", str(round(error.retry_after_s * 1000)))
    return CallStatus(code, message, (*_trailers(status), pushback))


def error_info(reason: str, **metadata: str) -> error_details_pb2.ErrorInfo:
    """The detail that every failed call carries."""
    return error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)


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
