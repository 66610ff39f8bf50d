"""How every process of ours logs: a line of text for people, or a JSON object a line for machines.

What a line is about travels as `extra` (request_id, worker, pool, incarnation, attempt, ...), a key for each.
Prompts, tokens and the secret are never logged, at no level.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType

TEXT = "%(levelname)s %(name)s: %(message)s"
_OWN_TO_RECORDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
JSON_BEGINS = '{"ts": '
"""How a line of ours begins, and nobody else's."""


def json_line(at_s: float, level: str, logger: str, message: str, more: Mapping[str, object]) -> str:
    """One object. at_s: seconds since the epoch; written as RFC 3339 with offset."""
    at = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    line = {"ts": at, "level": level, "logger": logger, "message": message, **more}
    return json.dumps(line, ensure_ascii=False, default=str)


class JsonLines(logging.Formatter):
    """One JSON object for each record. always: keys of every object, such as which worker this is."""

    def __init__(self, always: Mapping[str, str]) -> None:
        super().__init__()
        self._always = dict(always)

    def format(self, record: logging.LogRecord) -> str:
        """ts, level, logger, message; then what is always known, the record's extra, and an exception."""
        extra = {
            key: value
            for key, value in vars(record).items()
            if key not in _OWN_TO_RECORDS and not key.startswith("_")  # Ray adds one of its own
        }
        more: dict[str, object] = self._always | extra
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        return json_line(record.created, record.levelname.lower(), record.name, record.getMessage(), more)


def without_words(error: BaseException) -> str:
    """An exception's type and frames, and those of what led to it; no message, which might quote a prompt."""
    kind = type(error)
    words = f"{''.join(traceback.format_tb(error.__traceback__))}{kind.__module__}.{kind.__qualname__}"
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return words if before is None else f"{without_words(before)}, which led to:\n{words}"


def set_up_logs(level: str, form: str, **always: str) -> None:
    """Have this process log on stderr; once, after Ray is imported. form: text or json.

    In JSON nothing else may be between the lines: warnings, uncaught exceptions and Ray's own words take the
    same way.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(always) if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if form == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread
        ray = logging.getLogger("ray")
        ray.handlers.clear()
        ray.propagate = True


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("uncaught").critical("%s", kind.__name__, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    error = arguments.exc_value
    if error is not None:
        _log_uncaught(arguments.exc_type, error, arguments.exc_traceback)
