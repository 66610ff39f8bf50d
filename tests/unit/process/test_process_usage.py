"""What a process uses of its machine is measured, not guessed."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from twinpool import process_usage
from twinpool.process_usage import cpu_seconds, resident_bytes
from twinpool.worker.pulse import Pulse


def test_work_takes_processor_time() -> None:
    before = cpu_seconds()
    while cpu_seconds() == before:
        sum(range(1000))
    assert cpu_seconds() > before


only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is resident now")


@only_linux
def test_memory_that_is_only_mapped_is_not_resident() -> None:
    size = 256 * 1024 * 1024
    before = resident_bytes()
    with mmap.mmap(-1, size):
        assert resident_bytes() - before < size // 2


@only_linux
def test_memory_that_is_touched_is_resident_and_falls_when_it_is_freed() -> None:
    size = 64 * 1024 * 1024
    before = resident_bytes()
    # Straight from the system: what an allocator gets back it may keep.
    with mmap.mmap(-1, size) as touched:
        touched[:: mmap.PAGESIZE] = b"x" * (size // mmap.PAGESIZE)
        while_held = resident_bytes()
        assert while_held - before > size // 2
    assert while_held - resident_bytes() > size // 2


def test_where_the_system_does_not_tell_the_most_so_far_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_usage, "STATM", Path("/nowhere"))
    assert resident_bytes() > 0


def test_a_pulse_knows_no_usage_before_it_was_measured() -> None:
    pulse = Pulse()
    assert (pulse.cpu_s, pulse.rss_bytes) == (0.0, 0)
    pulse.measured(cpu_seconds(), resident_bytes())
    assert pulse.cpu_s > 0
    assert pulse.rss_bytes > 0
