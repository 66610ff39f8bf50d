"""Log lines as JSON: one line and one object each, whatever is logged, and by whomever."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from twinpool.logs import JSON_BEGINS, JsonLines
from twinpool.serving.worker_output import as_json_lines

FORMATTER = JsonLines({"worker": "decode-0", "pool": "decode"})


def written(message: str, *arguments: object, **extra: object) -> dict[str, Any]:
    logger = logging.getLogger("some.module")
    record = logger.makeRecord(
        logger.name, logging.WARNING, __file__, 1, message, arguments, None, extra=extra
    )
    line = FORMATTER.format(record)
    assert "\n" not in line
    assert line.startswith(JSON_BEGINS)
    loaded: dict[str, Any] = json.loads(line)
    return loaded


def test_a_line_has_time_level_logger_and_message_and_what_it_is_about() -> None:
    line = written("%s of %d:\nat ünd “last”", "one", 2, request_id="r", attempt="try-1", num_resumes=3)
    at = datetime.fromisoformat(line.pop("ts"))
    assert at.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=1)
    assert line == {
        "level": "warning",
        "logger": "some.module",
        "message": "one of 2:\nat ünd “last”",
        "worker": "decode-0",
        "pool": "decode",
        "request_id": "r",
        "attempt": "try-1",
        "num_resumes": 3,
    }


def test_what_json_cannot_hold_is_written_as_text() -> None:
    assert written("x", place=FORMATTER)["place"] == str(FORMATTER)


def test_an_exception_is_a_key_of_its_line() -> None:
    try:
        raise ValueError("wrong")
    except ValueError as error:
        record = logging.LogRecord("m", logging.ERROR, __file__, 1, "broke", (), (type(error), error, None))
    line = FORMATTER.format(record)
    assert "\n" not in line
    assert json.loads(line)["exception"] == "ValueError: wrong"


def test_a_workers_own_lines_pass_as_they_are_and_others_are_wrapped() -> None:
    own = '{"ts": "2026-01-01T00:00:00.000+00:00", "level": "info", "logger": "m", "message": "x"}'
    batch = {"lines": [own, "Fatal Python error: Aborted", "", '{"mine": 1}'], "pid": 42, "is_err": True}
    first, second, third = as_json_lines(batch, 0.0)
    assert first == own
    assert json.loads(second) == {
        "ts": "1970-01-01T00:00:00.000+00:00",
        "level": "warning",
        "logger": "output",
        "message": "Fatal Python error: Aborted",
        "pid": 42,
    }
    assert json.loads(third)["message"] == '{"mine": 1}'


def test_rays_own_processes_are_named_and_the_autoscaler_tells_only_what_is_for_people() -> None:
    (line,) = as_json_lines({"lines": ["A worker died"], "pid": "raylet"}, 0.0)
    assert (json.loads(line)["logger"], json.loads(line)["process"]) == ("ray", "raylet")
    chatter = {"lines": ["2026 INFO resizing", "2026 INFO :event_summary:Adding a node"], "pid": "autoscaler"}
    (line,) = as_json_lines(chatter, 0.0)
    assert json.loads(line)["message"] == "Adding a node"
