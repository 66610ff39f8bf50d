"""The CPUs that a process may use are the fewest that affinity and its cgroups allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twinpool.cpus import machine_cpus, usable_cpus

ALLOWED = 8


@pytest.fixture(autouse=True)
def _many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(ALLOWED)), raising=False)


def usable(folder: Path, membership: str, files: dict[str, str]) -> int:
    """In a file system in which cgroups are described so."""
    (folder / "membership").write_text(membership)
    for name, content in files.items():
        file = folder / "cgroups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return usable_cpus(folder / "membership", folder / "cgroups")


def test_the_machine_has_more_than_affinity_allows(tmp_path: Path) -> None:
    assert machine_cpus() == 64
    assert usable_cpus(tmp_path / "none", tmp_path) == ALLOWED


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, ALLOWED),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "350000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, ALLOWED),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "200000 100000\n", "a/cpu.max": "300000 100000\n"}, 2),
        ("0::/of/the/host\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/../../other\n", {"cpu.max": "400000 100000\n"}, 4),
        (
            "4:memory:/m\n3:cpu,cpuacct:/a\n0::/\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "50000\n"},
            3,
        ),
        (
            "3:cpuacct,cpu:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            ALLOWED,
        ),
        (
            "1:cpu:/a\n",
            {"cpu/cpu.cfs_quota_us": "500000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            5,
        ),
        ("2:cpuset:/a\n", {"cpuset/a/cpu.cfs_quota_us": "100000\n"}, ALLOWED),
        ("", {}, ALLOWED),
    ],
)
def test_a_quota_of_the_group_or_of_one_around_it(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int
) -> None:
    assert usable(tmp_path, membership, files) == expected
