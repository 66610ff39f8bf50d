"""Pools grow, shrink, drain and are renewed while clients read: no request fails, no token changes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from router.scheduling.commands import SchedulerSaid
from router.scheduling.events import SchedulerEvent
from tests.support.models.reference import ReferenceCase, reference_case, reference_cases
from tests.support.system.patience import PATIENT_S
from tests.support.system.running import RunningSystem, StartSystem, choice_of, quiesce
from twinpool.client import Chunk, Stream
from twinpool.client.values import Completion
from twinpool.config import RouterConfig
from twinpool.errors import InvalidRequest, UnknownWorker
from twinpool.types import Pool, WorkerState

WAIT_S = 90.0
NUM_STREAMS = 100
NUM_TOKENS = 120


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def has_workers(system: RunningSystem, prefill: int, decode: int) -> bool:
    """Just so many workers, all ready, and a canary has gone through every pair."""
    status = system.operations.status()
    ready = all(worker.state is WorkerState.READY for worker in status.workers)
    sizes = (len(status.pool(Pool.PREFILL)), len(status.pool(Pool.DECODE)))
    proven = sum(pair.ready for pair in status.pairs)
    return ready and sizes == (prefill, decode) and proven == prefill * decode


def resize(system: RunningSystem, prefill: int, decode: int) -> None:
    system.operations.set_pool_size(Pool.PREFILL, prefill)
    system.operations.set_pool_size(Pool.DECODE, decode)
    until(lambda: has_workers(system, prefill, decode))


@pytest.fixture(scope="module")
def scaled(start_system: StartSystem) -> RunningSystem:
    router = RouterConfig(grace_s=30.0, stuck_after_s=PATIENT_S)
    return start_system(decode=2, kv_memory_mib=128, router=router)


@pytest.fixture
def system(scaled: RunningSystem) -> Iterator[RunningSystem]:
    """One prefill and two decode workers before, and nothing left after."""
    resize(scaled, 1, 2)
    yield scaled
    quiesce(scaled)


def moved(system: RunningSystem) -> float:
    return system.metrics()['twinpool_row_moves_total{outcome="moved"}']


def kill_while_a_row_moves(system: RunningSystem, pid: int) -> threading.Event:
    """Kill a process at the first event while a row is on its way; set once that has happened."""
    scheduler, killed = system.system.dispatcher.scheduler, threading.Event()
    handle = scheduler.handle

    def handle_and_kill(event: SchedulerEvent, now: float) -> list[SchedulerSaid]:
        moves = (choice.move for choice in scheduler.choices)
        if not killed.is_set() and any(move is not None and move.copying for move in moves):
            os.kill(pid, signal.SIGKILL)
            killed.set()
        return handle(event, now)

    scheduler.handle = handle_and_kill  # type: ignore[method-assign]
    return killed


def decoding(system: RunningSystem) -> list[str]:
    return [worker.id for worker in system.operations.status().pool(Pool.DECODE) if worker.running]


def ask(system: RunningSystem, case: ReferenceCase, num_tokens: int) -> Completion:
    return system.client.complete(
        case.prompt_ids, max_tokens=num_tokens, temperature=0.0, ignore_eos=True, timeout=240.0
    )


@dataclass(frozen=True)
class Long:
    """Requests that run for seconds, and what an undisturbed run answers."""

    cases: tuple[ReferenceCase, ...]
    answers: tuple[tuple[int, ...], ...]


@pytest.fixture(scope="module")
def long(scaled: RunningSystem) -> Long:
    cases = tuple(case for case in reference_cases() if 30 <= len(case.prompt_ids) <= 200)[:8]
    with ThreadPoolExecutor(len(cases)) as threads:
        answers = tuple(threads.map(lambda case: ask(scaled, case, NUM_TOKENS).token_ids, cases))
    assert [answer[:24] for answer in answers] == [case.output_ids for case in cases]
    return Long(cases, answers)


@contextmanager
def asked(system: RunningSystem, long: Long) -> Iterator[list[Completion]]:
    """All are asked at once, and both decode workers are at work; afterwards all answers are there, exact."""
    found: list[Completion] = []
    with ThreadPoolExecutor(len(long.cases)) as threads:
        answers = [threads.submit(ask, system, case, NUM_TOKENS) for case in long.cases]
        until(lambda: len(decoding(system)) == 2)
        yield found
        found += [answer.result(240.0) for answer in answers]
    assert tuple(answer.token_ids for answer in found) == long.answers


def decode_of(system: RunningSystem, stream: Stream[Chunk]) -> str | None:
    requests = system.system.dispatcher.scheduler.requests

    def of() -> str | None:
        return choice_of(system, stream.request_id).decode_id if stream.request_id in requests else None

    return system.call(of)


def endless(system: RunningSystem, **options: float) -> Stream[Chunk]:
    """An answer that does not end while a test lasts, but for the test."""
    return system.client.generate("Once upon a time", max_tokens=2000, ignore_eos=True, **options)  # type: ignore[arg-type]


def test_rows_of_a_draining_worker_move_and_go_on_exactly(system: RunningSystem, long: Long) -> None:
    before = moved(system)
    with endless(system) as one, endless(system) as another:
        until(lambda: {decode_of(system, one), decode_of(system, another)} == {"decode-0", "decode-1"})
        with asked(system, long) as found:
            system.operations.drain_worker("decode-1")
        until(lambda: decode_of(system, one) == decode_of(system, another) == "decode-0")
    assert all(answer.num_resumes == 0 for answer in found)
    assert moved(system) > before
    until(lambda: has_workers(system, 1, 1))


def test_a_sampled_row_moves_as_if_nothing_had_happened(system: RunningSystem) -> None:
    before, tokens = moved(system), list[int]()
    with endless(system, temperature=1.0, seed=5) as stream:
        while len(tokens) < 2:
            tokens += next(stream).token_ids
        source = decode_of(system, stream)
        assert source is not None
        system.operations.drain_worker(source)
        until(lambda: moved(system) > before)
        choice = system.call(lambda: choice_of(system, stream.request_id))
        num_before = len(choice.log)
        while len(tokens) < num_before + 40:
            tokens += next(stream).token_ids
        assert choice.decode_id not in (None, source)
        assert choice.num_resumes == 0
    undisturbed = system.client.complete(
        "Once upon a time", max_tokens=len(tokens), temperature=1.0, seed=5, ignore_eos=True
    )
    assert tuple(tokens) == undisturbed.token_ids


@pytest.mark.parametrize("struck", ["decode-0", "decode-1"])
def test_streams_go_on_when_source_or_target_dies_while_rows_move(
    system: RunningSystem, long: Long, struck: str
) -> None:
    pids = {worker.id: worker.pid for worker in system.operations.status().workers}
    with asked(system, long):
        killed = kill_while_a_row_moves(system, pids[struck])
        system.operations.drain_worker("decode-1")
        assert killed.wait(WAIT_S)
    until(lambda: has_workers(system, 1, 1))


def test_no_stream_fails_when_a_prefill_worker_dies_while_it_drains(
    system: RunningSystem, long: Long
) -> None:
    resize(system, 2, 2)
    pids = {worker.id: worker.pid for worker in system.operations.status().workers}
    with asked(system, long):
        os.kill(pids["prefill-1"], signal.SIGSTOP)  # so that it cannot have left before
        system.operations.drain_worker("prefill-1")
        os.kill(pids["prefill-1"], signal.SIGKILL)
    until(lambda: has_workers(system, 1, 2))


def test_a_worker_without_a_neighbour_drains_within_its_grace_and_its_rows_resume(
    start_system: StartSystem,
) -> None:
    system = start_system(router=RouterConfig(grace_s=1.0, stuck_after_s=PATIENT_S))
    case = reference_case("plain")
    stream = system.client.generate(case.prompt_ids, max_tokens=200, temperature=0.0, ignore_eos=True)
    chunks = [next(stream), next(stream)]
    renewed = list(system.operations.restart("decode-0", timeout=WAIT_S))
    assert [worker_id for worker_id, _ in renewed] == ["decode-0"]
    chunks += list(stream)
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    assert len(tokens) == 200
    assert tuple(tokens[:24]) == case.output_ids
    quiesce(system)
    system.stop()


def test_a_pool_is_renewed_one_by_one_under_load(system: RunningSystem) -> None:
    before = {worker.id: worker.incarnation for worker in system.operations.status().workers}
    over = threading.Event()
    cases = [case for case in reference_cases() if len(case.prompt_ids) <= 100]

    def ask_on(case: ReferenceCase) -> bool:
        while not over.is_set():
            if ask(system, case, 24).token_ids != case.output_ids:
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        askers = [threads.submit(ask_on, case) for case in cases[:4]]
        try:
            renewed = dict(system.operations.restart(Pool.DECODE, timeout=WAIT_S))
            renewed |= dict(system.operations.restart("prefill-0", timeout=WAIT_S))
        finally:
            over.set()
        assert all(asker.result(60.0) for asker in askers)
    assert set(renewed) == set(before)
    until(lambda: has_workers(system, 1, 2))
    now = {worker.id: worker.incarnation for worker in system.operations.status().workers}
    assert now == renewed
    assert not set(now.values()) & set(before.values())


@pytest.mark.timeout(400)
def test_a_hundred_streams_read_on_while_both_pools_grow_threefold_and_shrink_again(
    system: RunningSystem,
) -> None:
    resize(system, 1, 1)
    cases = [case for case in reference_cases() if len(case.prompt_ids) <= 200]
    over = threading.Event()

    def ask_on(index: int) -> list[str]:
        """What came out wrong."""
        wrong = []
        while not over.is_set():
            case = cases[index % len(cases)]
            answer = ask(system, case, 24)
            wrong += [case.name] if answer.token_ids != case.output_ids else []
        return wrong

    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        askers = [threads.submit(ask_on, index) for index in range(NUM_STREAMS)]
        try:
            resize(system, 3, 3)
            resize(system, 1, 1)
        finally:
            over.set()
        assert [wrong for asker in askers for wrong in asker.result(240.0)] == []


def test_what_cannot_be_scaled_is_refused(system: RunningSystem) -> None:
    with pytest.raises(InvalidRequest):
        system.operations.set_pool_size(Pool.DECODE, 0)
    with pytest.raises(InvalidRequest):
        system.operations.set_pool_size(Pool.DECODE, 100_000)
    with pytest.raises(UnknownWorker):
        system.operations.drain_worker("decode-77")
    with pytest.raises(InvalidRequest, match="only worker"):
        system.operations.drain_worker("prefill-0")
    with pytest.raises(UnknownWorker):
        list(system.operations.restart("nobody"))
