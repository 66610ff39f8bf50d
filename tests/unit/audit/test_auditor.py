"""Workers are asked for their books all at once, within a bound, and again only where something differs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from router.audit import auditor
from router.audit.auditor import Auditor
from tests.support.router.small_fleet import SmallFleet
from twinpool.session.messages import Audit, Audited, BlockCounts, HeldStage, Holding
from twinpool.types import AttemptId
from twinpool.views import Verification

ORPHAN = Holding(AttemptId("try-9"), HeldStage.ADMITTED, 2, 1.0)

Answer = Callable[[str], tuple[Holding, ...] | None]
"""What a worker holds, by its id; None: it does not answer."""


class Bench:
    """A prefill and two decode workers of 16 blocks, which answer as told. asked: by worker id, in order."""

    def __init__(self, answer: Answer) -> None:
        self.fleet = SmallFleet(decode=2)
        self.asked: list[str] = []
        self._answer = answer
        self.auditor = Auditor(self.fleet.scheduler, self.send, quarantine_report_s=2.0)

    def send(self, worker_id: str, audit: Audit) -> None:
        self.asked.append(worker_id)
        held = self._answer(worker_id)
        if held is not None:
            taken = sum(each.num_blocks for each in held)
            blocks = BlockCounts(free=16 - taken, rows=taken)
            audited = Audited(audit.audit_id, blocks, held, ())
            asyncio.get_running_loop().call_soon(self.auditor.heard, audited)

    async def problems(self) -> dict[str, tuple[str, ...]]:
        return problems(await self.auditor.verify())


def problems(found: Verification) -> dict[str, tuple[str, ...]]:
    return {worker.worker_id: worker.problems for worker in found.workers if worker.problems}


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "ANSWER_TIMEOUT_S", 0.05)
    monkeypatch.setattr(auditor, "APART_S", 0.01)


async def test_workers_whose_books_agree_are_asked_once() -> None:
    bench = Bench(lambda worker_id: ())
    found = await bench.auditor.verify()
    assert sorted(bench.asked) == ["d0", "d1", "p0"]
    assert found.at_rest
    assert not problems(found)


async def test_only_a_worker_in_doubt_is_asked_again() -> None:
    bench = Bench(lambda worker_id: (ORPHAN,) if worker_id == "d1" else ())
    assert await bench.problems() == {"d1": ("it holds try-9, which the scheduler does not know",)}
    assert sorted(bench.asked) == ["d0", "d1", "d1", "p0"]


async def test_what_was_on_its_way_is_no_problem() -> None:
    asked: list[str] = []

    def answer(worker_id: str) -> tuple[Holding, ...]:
        asked.append(worker_id)
        return (ORPHAN,) if worker_id == "d1" and asked.count("d1") == 1 else ()

    found = await Bench(answer).auditor.verify()
    assert not problems(found)
    assert found.at_rest


async def test_a_worker_that_does_not_answer_holds_nobody_up() -> None:
    bench = Bench(lambda worker_id: None if worker_id == "d0" else ())
    assert await bench.problems() == {"d0": ("it does not answer: nothing is known of what it holds",)}


async def test_a_worker_lost_between_two_looks_is_not_asked_again() -> None:
    def answer(worker_id: str) -> tuple[Holding, ...]:
        if worker_id == "d1":
            asyncio.get_running_loop().call_soon(bench.fleet.goes_down, "d1")
        return (ORPHAN,) if worker_id == "d1" else ()

    bench = Bench(answer)
    assert await bench.problems() == {}
    assert bench.asked.count("d1") == 1


async def test_answers_that_nobody_waits_for_are_dropped() -> None:
    bench = Bench(lambda worker_id: None)
    bench.auditor.heard(Audited("nobody's", BlockCounts(), (), ()))
    verifying = asyncio.create_task(bench.auditor.verify())
    await asyncio.sleep(0)
    verifying.cancel()
    await asyncio.gather(verifying, return_exceptions=True)
    assert not bench.auditor._asked


async def test_without_workers_nothing_is_wrong() -> None:
    bench = Bench(lambda worker_id: ())
    for worker_id in ("p0", "d0", "d1"):
        bench.fleet.goes_down(worker_id)
    assert (await bench.auditor.verify()).workers == ()
