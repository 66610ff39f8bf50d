"""Whoever writes to an outlet is never held up: lines are lost while nobody reads, and that is told."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from twinpool.cli import outlet as outlets
from twinpool.cli.outlet import Outlet

MOST_BYTES = 1000
LINE = "x" * 99 + "\n"
PIPE_LINES = 10_000
"""More than any pipe holds."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "MOST_BYTES", MOST_BYTES)
    monkeypatch.setattr(outlets, "CLOSE_S", 0.1)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(writer)


def new_outlet(descriptor: int) -> Outlet:
    return Outlet(descriptor, lambda number: f"{number} lost\n")


def counted(read: bytes) -> list[int]:
    """For how many lines each whole line that was read stands; any other line is an error."""
    whole = read[: read.rfind(b"\n") + 1].decode().splitlines()
    return [1 if line == LINE.strip() else int(line.removesuffix(" lost")) for line in whole]


def test_lines_come_whole_and_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outlet = new_outlet(writer)
    print("one", file=outlet)
    print("t", end="", file=outlet)
    print("wo, grün", file=outlet)
    print("the end", end="", file=outlet, flush=True)
    outlet.close()
    assert os.read(reader, 100).decode() == "one\ntwo, grün\nthe end"
    os.close(reader)


def test_lines_of_two_threads_are_not_mixed(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outlet = new_outlet(writer)
    outlet.write("be")
    other = threading.Thread(target=lambda: print("other", file=outlet))
    other.start()
    other.join()
    outlet.write("gun\n")
    outlet.close()
    assert os.read(reader, 100) == b"other\nbegun\n"
    os.close(reader)


def test_what_nobody_reads_is_lost_counted_and_told_once_it_is_read_again(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outlet = new_outlet(writer)
    for _ in range(PIPE_LINES):
        outlet.write(LINE)
    read = b""
    while sum(counts := counted(read)) < PIPE_LINES:
        read += os.read(reader, 65536)
    outlet.close()
    os.close(reader)
    assert sum(counts) == PIPE_LINES
    assert min(counts) < max(counts)  # some came, and some were lost


def test_a_reader_that_is_gone_is_no_error(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outlet = new_outlet(writer)
    os.close(reader)
    print("one", file=outlet)
    outlet._thread.join()
    print("two", file=outlet, flush=True)
    outlet.close()


def test_an_end_does_not_wait_for_a_reader_that_takes_nothing(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outlet = new_outlet(writer)
    while not outlet._num_lost:
        outlet.write(LINE)
    outlet.close()
    outlet.write("after the end\n")
    os.close(reader)
    outlet._thread.join()


def test_a_pipe_that_another_process_made_non_blocking_is_written_whole(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, b"x" * 1024)
        except BlockingIOError:
            break
    outlet = new_outlet(writer)
    outlet.write("begun\n")
    read = b""
    while not read.endswith(b"begun\n"):
        read += os.read(reader, 65536)
    outlet.close()
    os.close(reader)
