"""How a call ends: the one table from errors to canonical codes, which each face writes in its own way."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from twinpool import errors
from twinpool.logs import without_words

log = logging.getLogger(__name__)


class Code(StrEnum):
    """Those of google.rpc.Code that are in use, by their names there; metrics count calls by them."""

    OK = "OK"
    CANCELLED = "CANCELLED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"


CODES: Mapping[type[errors.TwinpoolError], Code] = MappingProxyType(
    {
        errors.InvalidRequest: Code.INVALID_ARGUMENT,
        errors.ModelNotFound: Code.NOT_FOUND,
        errors.DuplicateRequestId: Code.ALREADY_EXISTS,
        errors.QueueFull: Code.RESOURCE_EXHAUSTED,
        errors.TooManyCalls: Code.RESOURCE_EXHAUSTED,
        errors.SlowReader: Code.RESOURCE_EXHAUSTED,
        errors.PoolUnavailable: Code.UNAVAILABLE,
        errors.WorkerLost: Code.UNAVAILABLE,
        errors.ServerDraining: Code.UNAVAILABLE,
        errors.UnknownWorker: Code.NOT_FOUND,
        errors.NotPlaced: Code.UNAVAILABLE,
        errors.StartFailed: Code.UNAVAILABLE,
        errors.TakenOver: Code.UNAVAILABLE,
        errors.RequestCancelled: Code.CANCELLED,
        errors.DeadlineExceeded: Code.DEADLINE_EXCEEDED,
        errors.UnsupportedModel: Code.FAILED_PRECONDITION,
        errors.ModelSourceError: Code.FAILED_PRECONDITION,
        errors.InternalError: Code.INTERNAL,
    }
)


def code_of(error: Exception) -> Code:
    """Its row in the table; what has none is a bug."""
    return CODES.get(type(error), Code.INTERNAL) if isinstance(error, errors.TwinpoolError) else Code.INTERNAL


def tellable(error: Exception, method: str) -> errors.TwinpoolError:
    """What a client may be told of an error: all of it, but of a bug only where the log explains it."""
    if isinstance(error, errors.TwinpoolError) and code_of(error) is not Code.INTERNAL:
        return error
    log_id = uuid.uuid4().hex[:12]
    what = error.message if isinstance(error, errors.InternalError) else without_words(error)
    log.error("%s failed (%s):\n%s", method, log_id, what)
    return errors.InternalError(
        f"internal error; the server's log has the details under {log_id}", log_id=log_id
    )
