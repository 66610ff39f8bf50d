"""Compares what workers hold with what the scheduler knows of them: pure.

A worker's audit and the scheduler's view of the moment at which the audit arrives make a *finding*. Session
messages keep their order, so the two agree but for what is on its way. What looks wrong in two findings of
the same life of a worker was not on its way: then it is a problem. What a worker finds wrong within itself,
counts that do not add up, and quarantines that last are problems at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from router.scheduling.fleet import Worker
from router.scheduling.phases import Phase
from router.scheduling.requests import Choice
from twinpool.session.messages import Audited, BlockCounts, HeldStage
from twinpool.types import HolderId, Pool
from twinpool.views import Verification, VerifiedWorker


class Doubt(StrEnum):
    """What does not fit about a holder, in words; it may be on its way."""

    ORPHAN = "it holds {holder}, which the scheduler does not know"
    MISSING = "it does not hold {holder}, which the scheduler has placed there"
    KEPT = "it was told to drop {holder} and still holds it"
    UNREPORTED = "it was told to drop {holder}, holds nothing of it, and has not said so"
    UNANSWERED = "it has not answered the reservation of {holder}"


@dataclass(frozen=True, slots=True)
class Books:
    """What the scheduler knows of one worker at one moment; sets of holders.

    due: must be held there. unanswered: a decode worker may hold them or not. leaving: told to drop, and not
    reported gone.
    """

    worker_id: str
    pool: Pool
    incarnation: str
    blocks_total: int
    due: frozenset[HolderId] = frozenset()
    unanswered: frozenset[HolderId] = frozenset()
    leaving: frozenset[HolderId] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known to be there."""
        return not (self.due or self.unanswered or self.leaving)


@dataclass(frozen=True, slots=True)
class Finding:
    """One worker's audit beside the scheduler's books; audited is None where none came in time."""

    books: Books
    audited: Audited | None
    doubts: frozenset[tuple[Doubt, HolderId]] = frozenset()


def books_of(worker: Worker, choices: Iterable[Choice]) -> Books:
    """The scheduler's view of a worker now."""
    choices = tuple(choices)
    placed = [
        (choice.handoff.id, choice)
        for choice in choices
        if choice.handoff and worker.worker_id in (choice.prefill_id, choice.decode_id)
    ]
    begun = [(handoff, choice) for handoff, choice in placed if choice.phase is not Phase.RESERVING]
    charged: set[HolderId] = set(worker.charged)
    due: set[HolderId]
    if worker.pool is Pool.PREFILL:
        # Charged until it says PrefillEnded; told of it when the reservation is granted.
        due = charged & {handoff for handoff, _ in begun}
        unanswered, leaving = set(), charged - {handoff for handoff, _ in placed}
    else:
        moves = (choice.move for choice in choices)
        coming = {move.handoff for move in moves if move and move.decode_id == worker.worker_id}
        due = {choice.holder for _, choice in begun} | (coming - charged)
        unanswered, leaving = charged, worker.leaving
    return Books(
        worker_id=worker.worker_id,
        pool=worker.pool,
        incarnation=worker.incarnation,
        blocks_total=worker.hello.blocks_total,
        due=frozenset(due),
        unanswered=frozenset(unanswered),
        leaving=frozenset(leaving),
    )


def compare(books: Books, audited: Audited) -> Finding:
    """One worker's audit, beside the books of the moment at which it came."""
    held = {each.holder for each in audited.held}
    # What is in quarantine has been reported gone: only its writer may still know it.
    active = {each.holder for each in audited.held if each.stage is not HeldStage.QUARANTINED}
    doubts = {
        Doubt.ORPHAN: active - books.due - books.unanswered - books.leaving,
        Doubt.MISSING: books.due - active,
        Doubt.KEPT: books.leaving & active,
        Doubt.UNREPORTED: books.leaving - held,
        Doubt.UNANSWERED: books.unanswered,
    }
    return Finding(books, audited, frozenset((doubt, each) for doubt in doubts for each in doubts[doubt]))


def conclude(
    first: Iterable[Finding], second: Mapping[str, Finding], num_requests: int, quarantine_report_s: float
) -> Verification:
    """What two looks, a while apart, have shown.

    second: by worker id; only workers that were in doubt are looked at again. num_requests: all that the
    scheduler holds now, canaries included. quarantine_report_s: seconds a quarantine may last.
    """
    newest = [(each, second.get(each.books.worker_id)) for each in first]
    workers = tuple(_verified(each, again, quarantine_report_s) for each, again in newest)
    knows_nothing = num_requests == 0 and all((again or each).books.is_empty for each, again in newest)
    return Verification(knows_nothing and all(_holds_nothing(worker) for worker in workers), workers)


def _holds_nothing(worker: VerifiedWorker) -> bool:
    blocks = worker.blocks
    return worker.answered and not worker.held and blocks.free + blocks.cached == worker.blocks_total


def _verified(first: Finding, second: Finding | None, quarantine_report_s: float) -> VerifiedWorker:
    newest = second or first
    books, audited = newest.books, newest.audited
    problems: list[str] = []
    if audited is None:
        problems.append("it does not answer: nothing is known of what it holds")
        audited = Audited("", BlockCounts(), (), ())
    else:
        problems += [*audited.problems, *_wrong_counts(books, audited)]
        problems += _overdue(audited, quarantine_report_s)
    if second is not None and first.books.incarnation == books.incarnation:
        lasting = sorted(first.doubts & second.doubts)
        problems += [doubt.value.format(holder=holder) for doubt, holder in lasting]
    return VerifiedWorker(
        books.worker_id,
        books.pool,
        books.incarnation,
        books.blocks_total,
        newest.audited is not None,
        audited.blocks,
        audited.held,
        tuple(problems),
    )


def _wrong_counts(books: Books, audited: Audited) -> list[str]:
    blocks = audited.blocks
    owned = blocks.reserved + blocks.rows + blocks.quarantined
    total = owned + blocks.free + blocks.cached
    held = sum(each.num_blocks for each in audited.held)
    problems = []
    if total != books.blocks_total:
        problems.append(f"its owners have {total} blocks, its pool has {books.blocks_total}")
    if held != owned:
        problems.append(f"its holders have {held} blocks, but {owned} belong to them")
    return problems


def _overdue(audited: Audited, quarantine_report_s: float) -> list[str]:
    return [
        f"{each.num_blocks} blocks of {each.holder} have been quarantined for {each.age_s:.1f} s"
        for each in audited.held
        if each.stage is HeldStage.QUARANTINED and each.age_s > quarantine_report_s
    ]
