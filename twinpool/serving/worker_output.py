"""What workers, and Ray's own processes, have to say, on our stderr as JSON lines.

Ray forwards it with a prefix before each line, and drops lines that resemble earlier ones; neither suits a
parser. So its printer is replaced: lines of our own pass as they are, and all others are wrapped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from twinpool.logs import JSON_BEGINS, json_line
from twinpool.serving.ray_internals import printed_by

_MARKS = (":info_message:", ":event_summary:")
"""Before a line's real words, where Ray's own processes speak."""


def json_worker_output() -> AbstractContextManager[None]:
    """While it lasts; to be begun before Ray is."""
    return printed_by(_print)


def _print(batch: Mapping[str, Any]) -> None:
    for line in as_json_lines(batch, time.time()):
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def as_json_lines(batch: Mapping[str, Any], now_s: float) -> list[str]:
    """Lines of one process, as Ray passes them on. now_s: since the epoch, for those without a time."""
    pid, lines = batch["pid"], []
    # Ray's own processes have a name for a pid.
    logger, about = ("ray", {"process": pid}) if isinstance(pid, str) else ("output", {"pid": pid})
    for line in batch["lines"]:
        if line.startswith(JSON_BEGINS):
            lines.append(line)
        elif words := _words(line, pid):
            lines.append(json_line(now_s, "warning", logger, words, about))
    return lines


def _words(line: str, pid: object) -> str:
    for mark in _MARKS:
        if mark in line:
            return line.partition(mark)[2].strip()
    # The autoscaler's whole log comes this way; only its marked lines are meant for people.
    return "" if pid == "autoscaler" else line.strip()
