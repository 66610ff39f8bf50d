"""Which versions of the protocols between its processes this Twinpool speaks.

A change that an older process would misread makes a new version; a field that may be absent does not. Two
processes speak the newest version that both know, and refuse one another where there is none. Raising
`oldest` forgets a version, once no release that is still upgraded from needs it. Processes of before 0.2 name
no range, and so are refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of one protocol that a process speaks, from oldest to newest; 0 to 0 if it says none."""

    oldest: int = 0
    newest: int = 0

    def common(self, theirs: Versions) -> int | None:
        """The newest that both speak; None if there is none."""
        newest = min(self.newest, theirs.newest)
        return newest if newest >= max(self.oldest, theirs.oldest) else None

    def __str__(self) -> str:
        return f"{self.oldest}" if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


SESSION = Versions(1, 1)
"""Between router and worker: `worker.proto`, and what a router calls on a worker's actor."""
HANDOFF = Versions(1, 1)
"""Between the two ends of a pair: the words of `twinpool.transfer`."""
