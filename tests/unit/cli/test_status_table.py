"""The table from errors to gRPC statuses is whole, and what it makes stays within a client's limits."""

from __future__ import annotations

import re

import grpc
import pytest
from google.rpc import status_pb2

from router.entrance.codes import CODES, Code, code_of, tellable
from router.faces.grpc.errors import MAX_MESSAGE_BYTES, call_status
from twinpool import errors


def all_errors(base: type[errors.TwinpoolError] = errors.TwinpoolError) -> set[type[errors.TwinpoolError]]:
    """Errors a server can raise; the client has one more of its own."""
    direct = {kind for kind in base.__subclasses__() if kind.__module__ == errors.__name__}
    return direct.union(*(all_errors(kind) for kind in direct))


def test_every_error_has_its_row() -> None:
    assert all_errors() == CODES.keys()


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_reasons_are_fit_for_error_info(kind: type[errors.TwinpoolError]) -> None:
    assert re.fullmatch(r"[A-Z][A-Z0-9_]+[A-Z0-9]", kind.reason)
    assert len(kind.reason) <= 63


def test_reasons_are_distinct() -> None:
    assert len({kind.reason for kind in CODES}) == len(CODES)


def test_no_error_is_ok() -> None:
    assert Code.OK not in CODES.values()


@pytest.mark.parametrize("code", Code)
def test_every_code_is_grpcs_under_its_own_name(code: Code) -> None:
    assert grpc.StatusCode[code].name == code


def test_a_long_message_is_cut_everywhere() -> None:
    status = call_status(errors.InvalidRequest("text", "é" * 100_000))
    assert len(status.message.encode()) == MAX_MESSAGE_BYTES
    raw = dict(status.trailers)["grpc-status-details-bin"]
    assert isinstance(raw, bytes)
    assert len(raw) < 8 * 1024
    assert status_pb2.Status.FromString(raw).message == status.message


def test_a_hint_to_retry_is_given_only_where_waiting_helps() -> None:
    hinted = call_status(errors.QueueFull("full", retry_after_s=0.25))
    assert dict(hinted.trailers)["grpc-retry-pushback-ms"] == "250"
    assert "grpc-retry-pushback-ms" not in dict(call_status(errors.SlowReader("slow")).trailers)


@pytest.mark.parametrize("bug", [ValueError("secret"), errors.InternalError("secret")])
def test_bugs_are_opaque_and_get_a_log_id_each(bug: Exception) -> None:
    first, second = tellable(bug, "Generate"), tellable(bug, "Generate")
    assert isinstance(first, errors.InternalError)
    assert isinstance(second, errors.InternalError)
    assert code_of(bug) is code_of(first) is Code.INTERNAL
    assert first.log_id != second.log_id
    status = call_status(first)
    assert status.code is grpc.StatusCode.INTERNAL
    assert "secret" not in repr(status)
    assert first.log_id in status.message
