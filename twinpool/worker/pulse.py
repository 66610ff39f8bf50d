"""The sign of life of an engine's thread: a counter that stands still only when the thread does."""

from __future__ import annotations

import ctypes

from twinpool.session.messages import LoadReport

REPORT_INTERVAL_S = 1.0
"""How often a worker reports its pulse, whatever else it says."""


class Pulse:
    """Turns and steps are written by the engine's thread alone, the process's usage by whoever reports it.

    A process that is stopped, or an engine that is stuck in a call, may still answer pings from other
    threads; its turns do not lie. turns: of the loop, idle ones included. layers: of the model, computed, so
    that a step may be long and is still seen to move. step_s: seconds of the newest step.
    cpu_s and rss_bytes: processor time and memory of the process, when last measured.
    """

    def __init__(self) -> None:
        self.turns = 0
        self.layers = ctypes.c_int64()
        self.step_s = 0.0
        self.cpu_s = 0.0
        self.rss_bytes = 0

    def beat(self) -> None:
        """One more turn."""
        self.turns += 1

    def measured(self, cpu_s: float, rss_bytes: int) -> None:
        """Take in what the process has used of the machine."""
        self.cpu_s = cpu_s
        self.rss_bytes = rss_bytes

    def load(
        self,
        *,
        running: int,
        waiting: int,
        blocks_free: int,
        blocks_quarantined: int = 0,
        handoffs: int,
    ) -> LoadReport:
        """These counts, with the pulse."""
        return LoadReport(
            running,
            waiting,
            blocks_free,
            blocks_quarantined,
            handoffs,
            progress=self.turns + self.layers.value,
            step_s=self.step_s,
            cpu_s=self.cpu_s,
            rss_bytes=self.rss_bytes,
        )
