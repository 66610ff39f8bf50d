"""Runs one program for a bounded time, and tells what it printed and how much others computed meanwhile.

    python -m benchmarks.peers.watched SECONDS COMMAND...

Prints one JSON object: `result`, the last JSON line of the command, or `failure`, in words; and `others_cpu`,
the share of the machine's CPU time that neither was idle nor went to the command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_STAT = Path("/proc/stat")
_IDLE = slice(3, 5)  # idle and waiting for a disk; see proc_stat(5)


def watched(command: list[str], limit_s: float) -> dict[str, Any]:
    """What the module prints."""
    busy, own, start = _busy_s(), _children_s(), time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            printed, complaints = process.communicate(timeout=limit_s)
            outcome = _outcome(process.returncode, printed, complaints)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            outcome = {"failure": f"did not finish within {limit_s:g} s"}
    took_s = (time.monotonic() - start) * (os.cpu_count() or 1)
    others = (_busy_s() - busy) - (_children_s() - own)
    return outcome | {"others_cpu": min(1.0, max(0.0, others / took_s))}


def _outcome(status: int, printed: str, complaints: str) -> dict[str, Any]:
    if status:
        lines = complaints.strip().splitlines() or ["no reason given"]
        return {"failure": f"ended with {status}: {lines[-1][:200]}"}
    objects = [line for line in printed.splitlines() if line.startswith("{")]
    return {"result": json.loads(objects[-1])} if objects else {"failure": "printed no result"}


def _busy_s() -> float:
    """CPU seconds of the whole machine since it started, with those that its host gave to others."""
    ticks = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - sum(ticks[_IDLE])) / os.sysconf("SC_CLK_TCK")


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    print(json.dumps(watched(sys.argv[2:], float(sys.argv[1]))))
