"""What a verification tells: who holds which blocks, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.types import Pool


@dataclass(frozen=True, slots=True)
class BlockUsage:
    """Blocks of one worker by owner; they sum to its pool. A prefill worker's prompts count as rows."""

    free: int
    reserved: int
    rows: int
    cached: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class BlockHolding:
    """What a worker holds for one holder. stage: where that is in its life there.

    holder: the id of a hand-off, which is one reading of a prompt and the cache that comes of it; or of an
    attempt, which is one try of a choice, once that cache is there.
    age_s: seconds it has been in this stage; on a prefill worker, since it came.
    """

    holder: str
    stage: str
    blocks: int
    age_s: float


@dataclass(frozen=True, slots=True)
class VerifiedWorker:
    """What was found on one worker. answered: whether it told in time; if not, its figures are zero."""

    id: str
    pool: Pool
    incarnation: str
    answered: bool
    blocks_total: int
    blocks: BlockUsage
    held: tuple[BlockHolding, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found. at_rest: nothing is held anywhere, and there is no request."""

    at_rest: bool
    workers: tuple[VerifiedWorker, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """All that is wrong, in words; empty if nothing is."""
        return tuple(f"{worker.id}: {problem}" for worker in self.workers for problem in worker.problems)
