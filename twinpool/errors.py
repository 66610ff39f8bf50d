"""Every error that may reach a client, typed; `router.entrance.codes` has the code its call ends with."""

from __future__ import annotations

from typing import Any


class TwinpoolError(Exception):
    """Base of all errors that Twinpool raises on purpose.

    reason: UPPER_SNAKE, for machines (google.rpc.ErrorInfo.reason).
    retry_after_s: set only where waiting helps.
    """

    reason = "INTERNAL"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        """By state, not by calling the class: errors cross processes whatever their constructors ask for."""
        return _restored, (type(self), self.args), self.__dict__


class InvalidRequest(TwinpoolError):
    """A value that can never be served. field: its path in the request message."""

    reason = "INVALID_REQUEST"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ModelNotFound(TwinpoolError):
    """The named model is not served here."""

    reason = "MODEL_NOT_FOUND"


class DuplicateRequestId(TwinpoolError):
    """A request with this id is in flight."""

    reason = "DUPLICATE_REQUEST_ID"


class QueueFull(TwinpoolError):
    """The queue's limit is reached."""

    reason = "QUEUE_FULL"


class TooManyCalls(TwinpoolError):
    """As many calls as may be open at one time are open, or their messages are as large as they may be."""

    reason = "TOO_MANY_CALLS"


class PoolUnavailable(TwinpoolError):
    """No worker of a pool can take requests; the message names the pool."""

    reason = "POOL_UNAVAILABLE"


class WorkerLost(TwinpoolError):
    """The request's worker or its hand-off failed."""

    reason = "WORKER_LOST"


class ServerDraining(TwinpoolError):
    """The server is stopping."""

    reason = "SERVER_DRAINING"


class SlowReader(TwinpoolError):
    """The client read too slowly for too long."""

    reason = "SLOW_READER"


class RequestCancelled(TwinpoolError):
    """The client ended the request."""

    reason = "CANCELLED"


class DeadlineExceeded(TwinpoolError):
    """The request's time ran out. phase: which of `Timing`'s it was in, without the unit; empty for none."""

    reason = "DEADLINE_EXCEEDED"

    def __init__(self, message: str, *, phase: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.phase = phase


class InternalError(TwinpoolError):
    """A bug; the detail is in the server's log. log_id: where, once it is there."""

    reason = "INTERNAL"

    def __init__(self, message: str, *, log_id: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.log_id = log_id


class UnsupportedModel(TwinpoolError):
    """A model that this version cannot serve; the message names the feature."""

    reason = "UNSUPPORTED_MODEL"


class ModelSourceError(TwinpoolError):
    """A model could not be fetched, or arrived damaged."""

    reason = "MODEL_SOURCE"


class TakenOver(TwinpoolError):
    """A newer router of the same deployment has the workers now."""

    reason = "TAKEN_OVER"


class StartFailed(TwinpoolError):
    """The system did not come up; the message says which part and why."""

    reason = "START_FAILED"


class NotPlaced(StartFailed):
    """The cluster has no room for a worker now."""

    reason = "NOT_PLACED"


class UnknownWorker(TwinpoolError):
    """There is no worker of that name."""

    reason = "UNKNOWN_WORKER"


def _restored(kind: type[TwinpoolError], args: tuple[object, ...]) -> TwinpoolError:
    return kind.__new__(kind, *args)
