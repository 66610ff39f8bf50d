"""The CPUs of this machine, and those that this process may use: affinity and cgroups may allow fewer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_PROC, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def machine_cpus() -> int:
    """CPUs that the machine has."""
    return os.cpu_count() or 1


def usable_cpus(membership: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """CPUs' worth of time that this process may have at once, in whole CPUs, at least 1.

    A thread more would have all of them wait: a quota stops the whole group once it is used up.
    membership, cgroups: where Linux tells of cgroups; see cgroups(7).
    """
    # Not on macOS, which has no affinity.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine_cpus()
    quota = min(_quotas(membership, cgroups), default=math.inf)
    return max(1, int(min(allowed, quota)))


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    """The quotas of the process's groups and of all groups around them, in CPUs."""
    for line in filter(None, _words(membership, "\n") or ()):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            trees = [cgroups]  # version 2 has one tree
        elif "cpu" in controllers.split(","):
            trees = [cgroups / controllers, cgroups / "cpu"]
        else:
            continue
        for tree in trees:
            group = tree.joinpath(*(part for part in path.split("/") if part not in ("", "..")))
            for folder in (group, *group.parents):
                if folder.is_relative_to(tree):
                    yield from _quota(folder)


def _quota(folder: Path) -> Iterator[float]:
    """A group's own: `cpu.max` of version 2, two files of version 1."""
    quota, period = _words(folder / "cpu.max") or [
        *(_words(folder / "cpu.cfs_quota_us") or ["-1"]),
        *(_words(folder / "cpu.cfs_period_us") or ["1"]),
    ]
    if quota not in ("max", "-1"):
        yield int(quota) / int(period)


def _words(file: Path, separator: str | None = None) -> list[str] | None:
    """A file's words; None where there is no such file."""
    try:
        return file.read_text().strip().split(separator)
    except OSError:
        return None
