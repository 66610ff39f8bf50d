"""Exit codes of the command line, and the one line that says what went wrong.

0: done. 1: failed, for a reason that has no code of its own. 2: wrong usage or configuration.
3: no server answers, or it cannot serve now. 4: the server refuses the request as it is.
5: the server is busy; try again later. 6: out of time. 7: the model cannot be fetched or served.
130: interrupted before it was done, by Ctrl-C, SIGTERM or SIGHUP. 141: nobody reads the output.
"""

from __future__ import annotations

import contextlib
import sys
from enum import IntEnum

from twinpool import errors


class Exit(IntEnum):
    """What a command's end tells a script."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    REFUSED = 4
    BUSY = 5
    OUT_OF_TIME = 6
    MODEL = 7
    INTERRUPTED = 130
    UNREAD = 141


_BY_REASON = {
    "SERVER_UNREACHABLE": Exit.UNAVAILABLE,
    errors.PoolUnavailable.reason: Exit.UNAVAILABLE,
    errors.WorkerLost.reason: Exit.UNAVAILABLE,
    errors.ServerDraining.reason: Exit.UNAVAILABLE,
    errors.InvalidRequest.reason: Exit.REFUSED,
    errors.ModelNotFound.reason: Exit.REFUSED,
    errors.DuplicateRequestId.reason: Exit.REFUSED,
    errors.UnknownWorker.reason: Exit.REFUSED,
    errors.QueueFull.reason: Exit.BUSY,
    errors.TooManyCalls.reason: Exit.BUSY,
    errors.DeadlineExceeded.reason: Exit.OUT_OF_TIME,
    errors.UnsupportedModel.reason: Exit.MODEL,
    errors.ModelSourceError.reason: Exit.MODEL,
}


def complain(error: object, code: Exit) -> Exit:
    """Say on stderr, in one line, what went wrong, to whoever may read it; return the code."""
    with contextlib.suppress(OSError):
        print(f"twinpool: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def complain_of(error: errors.TwinpoolError) -> Exit:
    """The same for a typed error, with its hint when to try again."""
    hint = "" if error.retry_after_s is None else f" (try again in {error.retry_after_s:g} s)"
    return complain(f"{error}{hint}", code_of(error))


def code_of(error: errors.TwinpoolError) -> Exit:
    """The code for a typed error."""
    if isinstance(error, errors.InvalidRequest):
        return Exit.REFUSED
    return _BY_REASON.get(error.reason, Exit.FAILED)
