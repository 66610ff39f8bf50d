"""What workers, and Ray's own processes, have to say, on our stderr as JSON lines.

Ray forwards it with a prefix before each line, and drops lines that resemble earlier ones; neither suits a
parser. So its printer is replaced: lines of our own pass as they are, and all others are wrapped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# Ray has no public way to take these lines.
from ray._private import worker as ray_worker

from twinpool.logs import JSON_BEGINS, json_line

_MARKS = (":info_message:", ":event_summary:")
"""Before a line's real words, where Ray's own processes speak."""


@contextmanager
def json_worker_output() -> Iterator[None]:
    """While it lasts; to be begun before Ray is."""
    printer = ray_worker.print_to_stdstream
    ray_worker.print_to_stdstream = _print
    try:
        yield
    finally:
        ray_worker.print_to_stdstream = printer


def _print(data: Any, ignore_prefix: bool) -> None:  # noqa: ARG001 (Ray's names)
    for line in as_json_lines(data, time.time()):
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
