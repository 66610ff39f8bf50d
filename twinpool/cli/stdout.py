"""Keeps stdout for results: what libraries and child processes write there goes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]
"""Prints one line on the real stdout."""


@contextmanager
def only_results_on_stdout() -> Iterator[Say]:
    """Point descriptor 1 at stderr, and hand out the way to the real one."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)

    def say(line: str) -> None:
        os.write(real, f"{line}\n".encode())

    try:
        yield say
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)
