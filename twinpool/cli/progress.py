"""Progress for people, on stderr: a bar at a terminal, a line for each step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

if TYPE_CHECKING:
    from twinpool.prepare.progress import Progress as Steps


@contextmanager
def shown_steps() -> Iterator[Steps]:
    """What `twinpool.prepare.pull` reports its steps to, until the end of the `with`."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress)


@contextmanager
def shown_count(total: int, of: str, *, shows: bool = True) -> Iterator[Callable[[], object]]:
    """Call what it yields at each of so many; nothing is shown where there is no terminal, or on wish."""
    console = Console(stderr=True)
    if not shows or not console.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn seldom: whoever counts may be measuring.
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        task = progress.add_task(of, total=total)
        yield lambda: progress.advance(task)


class _Bar:
    """One bar; each step takes it over from the step before."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def step(self, description: str, total_bytes: int | None = None) -> None:
        """Show a new step; its bar runs without measure where the total is not known."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(description, total=total_bytes)

    def advance(self, num_bytes: int) -> None:
        """Move the bar on."""
        if self._task is not None:
            self._progress.advance(self._task, num_bytes)


class _Lines:
    """A line for each step; nothing in between."""

    def step(self, description: str, total_bytes: int | None = None) -> None:
        """Name the step, and its size where that is known."""
        size = f" ({total_bytes / 1e6:.1f} MB)" if total_bytes else ""
        print(f"{description}{size}", file=sys.stderr, flush=True)

    def advance(self, num_bytes: int) -> None:
        """Show nothing."""
