"""Two workers when one of them, or the hand-off between them, goes wrong: who hears, and what is held."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.reference import reference_case
from tests.support.workers.router_double import Attempt, RouterDouble, greedy
from tests.support.workers.running_workers import NUM_BLOCKS, RunningWorkers, StartWorkers
from tests.support.workers.scripted_transport import Fault, Planned
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.errors import StartFailed
from twinpool.kv.storage import copy_blocks
from twinpool.session.messages import (
    Admit,
    Drop,
    PairBroken,
    PrefillEnded,
    PrefillOutcome,
    QuarantineOverdue,
    Released,
    ReleaseReason,
    Written,
)
from twinpool.transfer import shm_sender
from twinpool.types import Pool

SHORT = reference_case("33 tokens")
LONG = reference_case("600 tokens")


async def reached(planned: Planned) -> None:
    assert await asyncio.to_thread(planned.reached.wait, 10.0)


async def hand_off(router: RouterDouble, *, ttl_s: float = 30.0, admit: bool = False) -> Attempt:
    """Start the hand-off of SHORT's cache; the attempt."""
    attempt = router.new_attempt()
    await router.reserve(attempt, 40, ttl_s=ttl_s)
    router.read(attempt, SHORT.prompt_ids, greedy(6))
    if admit:
        router.admit(attempt, SHORT.prompt_ids, greedy(6), SHORT.output_ids[:1])
    return attempt


async def test_decode_reads_the_cache_that_was_handed_off(
    workers: RunningWorkers, router: RouterDouble
) -> None:
    workers.script.plan("push", Fault.CORRUPT)
    damaged = await router.answer(SHORT.prompt_ids, 10)
    assert damaged[0] == SHORT.output_ids[0]  # the prefill worker's own cache is sound
    assert damaged[1:] != SHORT.output_ids[1:10]
    assert await router.answer(SHORT.prompt_ids, 10) == SHORT.output_ids[:10]


@pytest.mark.parametrize("word", ["begin", "push", "written"])
async def test_pair_that_breaks_frees_both_sides_and_is_joined_again(
    workers: RunningWorkers, router: RouterDouble, word: str
) -> None:
    workers.script.plan(word, Fault.FAIL)
    attempt = await hand_off(router)
    ended = await router.prefill.event(PrefillEnded, attempt)
    assert (ended.outcome, ended.detail) == (PrefillOutcome.PAIR_LOST, "as scripted")
    assert (await router.prefill.event(PairBroken)).reason == "as scripted"
    if word == "begin":
        router.decode.send(Drop(attempt.handoff))  # it never heard of a writer
        await router.decode.event(Released, attempt)
    else:
        released = await router.decode.event(Released, attempt)
        assert (released.reason, released.detail) == (
            ReleaseReason.CONNECTION_ENDED,
            "the hand-off connection ended",
        )
    await router.join_again()
    assert await router.answer(SHORT.prompt_ids, 3) == SHORT.output_ids[:3]


async def test_transport_with_a_bug_fails_the_prompt_alone(
    workers: RunningWorkers, router: RouterDouble
) -> None:
    workers.script.plan("push", Fault.RAISE)
    attempt = await hand_off(router)
    ended = await router.prefill.event(PrefillEnded, attempt)
    assert (ended.outcome, ended.detail) == (PrefillOutcome.FAILED, "RuntimeError")
    assert (await router.decode.event(Released, attempt)).reason is ReleaseReason.HANDOFF_FAILED
    assert await router.answer(SHORT.prompt_ids, 3) == SHORT.output_ids[:3]


@pytest.mark.parametrize("admit", [True, False])
async def test_lost_last_word_expires_the_reservation(
    workers: RunningWorkers, router: RouterDouble, admit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = workers.script.plan("written", Fault.DROP)
    attempt = await hand_off(router, ttl_s=30.0, admit=admit)
    await reached(lost)
    assert not router.decode.events_of(Released, attempt)
    # A hundred times faster from here: what is still on its way may renew the reservation once more.
    now = time.monotonic()
    monkeypatch.setattr(workers.decode.custody, "_clock", lambda: now + 100 * (time.monotonic() - now))
    assert (await router.decode.event(Released, attempt)).reason is ReleaseReason.EXPIRED


async def test_writer_that_does_not_let_go_is_reported(
    start_workers: StartWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, go_on = threading.Event(), threading.Event()

    def slow_copy(*arguments: Any) -> None:
        copying.set()
        assert go_on.wait(20.0)
        copy_blocks(*arguments)

    monkeypatch.setattr(shm_sender, "copy_blocks", slow_copy)
    workers = start_workers(quarantine_report_s=0.2)
    async with RouterDouble(workers) as router:
        attempt = await hand_off(router)
        assert await asyncio.to_thread(copying.wait, 10.0)
        router.decode.send(Drop(attempt.handoff))
        released = await router.decode.event(Released, attempt)
        assert (released.reason, released.load.blocks_quarantined) == (ReleaseReason.REVOKED, 3)
        overdue = await router.decode.event(QuarantineOverdue, attempt)
        assert overdue.writer == router.prefill_hello.incarnation
        go_on.set()
        await router.decode.reports(blocks_free=NUM_BLOCKS)
        # The stop and the last copy's end cross: either may come first, and one last word is said.
        ended = await router.prefill.event(PrefillEnded, attempt)
        assert ended.outcome in (PrefillOutcome.STOPPED, PrefillOutcome.DONE)


async def test_damaged_block_is_found_by_its_checksum(start_workers: StartWorkers) -> None:
    workers = start_workers(checksum=True)
    async with RouterDouble(workers) as router:
        assert await router.answer(LONG.prompt_ids, 3) == LONG.output_ids[:3]
        workers.script.plan("push", Fault.CORRUPT, skip=1)
        attempt, _ = await router.start(LONG.prompt_ids, 3)
        released = await router.decode.event(Released, attempt)
        assert released.reason is ReleaseReason.DAMAGED
        # The second push begins after the blocks that the first step of 256 tokens filled.
        assert released.detail == "checksum of block 16 differs"
        assert not router.decode.row_tokens(attempt)
    await workers.wait_until_at_rest()


async def test_lost_begin_is_given_up_after_a_while(start_workers: StartWorkers) -> None:
    workers = start_workers(reservation_ttl_s=0.5)
    async with RouterDouble(workers) as router:
        workers.script.plan("begin", Fault.DROP)
        attempt = await hand_off(router, ttl_s=30.0)
        ended = await router.prefill.event(PrefillEnded, attempt)
        assert (ended.outcome, ended.detail) == (
            PrefillOutcome.PAIR_LOST,
            "the decode worker did not answer `begin`",
        )
    await workers.wait_until_at_rest()


async def test_decode_worker_that_leaves_breaks_the_pair(start_workers: StartWorkers) -> None:
    workers = start_workers()
    async with RouterDouble(workers) as router:
        slow = workers.script.plan("push", Fault.DELAY)
        attempt = await hand_off(router)
        await reached(slow)
        stopping = asyncio.create_task(asyncio.to_thread(workers.stop_one, Pool.DECODE))
        assert await router.decode.end() == "session ended"
        slow.let_go.set()
        await stopping
        await router.prefill.event(PairBroken)
        ended = await router.prefill.event(PrefillEnded, attempt)
        # DONE if the last word went out before the connection's end was seen.
        lost = (PrefillOutcome.PAIR_LOST, PrefillOutcome.STOPPED)
        assert ended.outcome in (*lost, PrefillOutcome.DONE)
        assert ended.load.blocks_free == NUM_BLOCKS


async def test_worker_whose_engine_thread_fails_ends_its_session_for_good(
    start_workers: StartWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    workers = start_workers()
    async with RouterDouble(workers) as router:
        attempt = await hand_off(router)
        await router.decode.event(Written, attempt)
        router.decode.send(
            Admit(attempt.id, attempt.handoff, 0, (1,) * 33, (), greedy(6))
        )  # without the token to go on from
        assert await router.decode.end() == "session ended"
        with pytest.raises(StartFailed, match="its engine thread failed"):
            await RouterDouble(workers).decode.open()
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "the engine thread failed"
    ]


async def test_stopped_workers_leave_no_thread_and_no_memory_behind(default_model: PreparedModel) -> None:
    others, before, num_lives = set(threading.enumerate()), _num_pools(), 3
    for _ in range(num_lives):
        workers = RunningWorkers(default_model)
        async with RouterDouble(workers) as router:
            await router.start(SHORT.prompt_ids, 200)
            await asyncio.to_thread(workers.stop)
        left = {thread.name.partition("-")[0] for thread in set(threading.enumerate()) - others}
        assert not left & {"engine", "expiry", "session", "pair", "handoff"}
    # gRPC may keep what it served last until it serves again.
    assert _num_pools() - before <= 1


def _num_pools() -> int:
    """Descriptors of pools and their mappings, which hold one too."""
    gc.collect()
    names = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum("memfd:twinpool-kv" in name for name in names)
