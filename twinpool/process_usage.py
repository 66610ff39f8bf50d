"""What this process uses of its machine, from the standard library alone: Linux and macOS."""

from __future__ import annotations

import resource
import time
from pathlib import Path

STATM = Path("/proc/self/statm")
"""Linux: pages of memory; the second number counts the resident ones."""


def cpu_seconds() -> float:
    """Processor time so far, user and system, all threads together."""
    return time.process_time()


def resident_bytes() -> int:
    """Memory held now, shared pages included; where the system does not tell (macOS), the most so far."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize()
