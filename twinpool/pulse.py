"""The sign of life of an engine's thread: a counter that stands still only when the thread does."""

from __future__ import annotations

REPORT_INTERVAL_S = 1.0
"""How often a worker reports its pulse, whatever else it says."""


class Pulse:
    """Written by the engine's thread alone, read by any.

    A process that is stopped, or an engine that is stuck in a call, may still answer pings from other
    threads; its turns do not lie. turns: of the loop, idle ones included. step_s: seconds of the newest step.
    """

    def __init__(self) -> None:
        self.turns = 0
        self.step_s = 0.0

    def beat(self) -> None:
        """One more turn."""
        self.turns += 1
