"""How pull tells what it is doing, without knowing who shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called by pull, in its own thread."""

    def step(self, description: str, total_bytes: int | None = None) -> None:
        """A new step begins and ends the one before. total_bytes is None where it is not known."""

    def advance(self, num_bytes: int) -> None:
        """So many more bytes of this step are done."""


class Silent:
    """Shows nothing."""

    def step(self, description: str, total_bytes: int | None = None) -> None:
        """Ignored."""

    def advance(self, num_bytes: int) -> None:
        """Ignored."""
