"""Workers die, stop and are replaced while clients read: no stream is lost, no block is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from router.telemetry.series import RESTARTS
from tests.support.models.reference import ReferenceCase, reference_case, reference_cases
from tests.support.system.patience import impatient
from tests.support.system.running import (
    READY_S,
    RunningSystem,
    StartSystem,
    choice_of,
    quiesce,
    wait_until_ready,
)
from twinpool.client import Chunk, Stream
from twinpool.client.values import Completion
from twinpool.config import EngineConfig
from twinpool.engine.kernels.native.library import native_library
from twinpool.errors import DeadlineExceeded

NUM_TOKENS = 24


@pytest.fixture(scope="module")
def two_pairs(start_system: StartSystem) -> RunningSystem:
    return start_system(prefill=2, decode=2)


@pytest.fixture
def system(two_pairs: RunningSystem) -> Iterator[RunningSystem]:
    """All workers are ready before, and again, with nothing left, after the test."""
    yield two_pairs
    wait_until_ready(two_pairs)
    quiesce(two_pairs)


def pid_of(system: RunningSystem, worker_id: str) -> int:
    return next(worker.pid for worker in system.operations.status().workers if worker.id == worker_id)


def ask(system: RunningSystem, case: ReferenceCase, num_tokens: int = NUM_TOKENS) -> Completion:
    return system.client.complete(
        case.prompt_ids, max_tokens=num_tokens, temperature=0.0, ignore_eos=True, timeout=120.0
    )


def strike(system: RunningSystem, worker_id: str, number: signal.Signals) -> None:
    os.kill(pid_of(system, worker_id), number)


def wait_for_rows(system: RunningSystem, worker_id: str) -> None:
    """Until a worker has something to do."""
    deadline = time.monotonic() + READY_S
    while True:
        worker = next(each for each in system.operations.status().workers if each.id == worker_id)
        if worker.running or worker.waiting:
            return
        assert time.monotonic() < deadline


REPLACED = {signal.SIGKILL: "exited", signal.SIGSTOP: "stuck", signal.SIGTERM: "exited"}
"""For which reason a worker is replaced after each signal."""


def num_replaced(system: RunningSystem, worker_id: str) -> dict[str, float]:
    """How many workers of its pool were replaced, by reason."""
    metrics, pool = system.metrics(), worker_id.partition("-")[0]
    return {
        reason: metrics[f'twinpool_worker_restarts_total{{pool="{pool}",reason="{reason}"}}']
        for reason in RESTARTS
    }


@pytest.mark.parametrize("number", REPLACED)
@pytest.mark.parametrize("worker_id", ["decode-0", "prefill-1"])
def test_streams_go_on_exactly_when_a_worker_is_struck(
    system: RunningSystem, worker_id: str, number: signal.Signals
) -> None:
    cases = [case for case in reference_cases() if len(case.prompt_ids) > 40][:16]
    before = num_replaced(system, worker_id)
    with ThreadPoolExecutor(len(cases)) as threads:
        answers = [threads.submit(ask, system, case) for case in cases]
        wait_for_rows(system, worker_id)
        strike(system, worker_id, number)
        with impatient(system) if number is signal.SIGSTOP else nullcontext():
            found = [answer.result(120.0) for answer in answers]
            reason, deadline = REPLACED[number], time.monotonic() + READY_S
            while num_replaced(system, worker_id)[reason] == before[reason]:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    if number is not signal.SIGSTOP:  # a busy machine may be late with more than one report
        assert num_replaced(system, worker_id) == {**before, reason: before[reason] + 1}
    assert [answer.token_ids for answer in found] == [case.output_ids for case in cases]


def read_until_its_worker_dies(system: RunningSystem, stream: Stream[Chunk]) -> tuple[list[Chunk], str]:
    """All chunks, and the decode worker that was killed as soon as it had made a token."""
    pids = {worker.id: worker.pid for worker in system.operations.status().workers}
    chunks = [next(stream), next(stream)]
    struck = system.call(lambda: choice_of(system, stream.request_id).decode_id)
    assert struck is not None
    os.kill(pids[struck], signal.SIGKILL)
    return [*chunks, *stream], struck


def test_a_lost_stream_says_that_it_was_resumed(system: RunningSystem) -> None:
    case = reference_case("plain")
    stream = system.client.generate(case.prompt_ids, max_tokens=200, temperature=0.0, ignore_eos=True)
    chunks, struck = read_until_its_worker_dies(system, stream)
    summary = chunks[-1].summary
    assert summary is not None
    assert summary.num_resumes == 1
    assert summary.workers.decode != struck
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    assert len(tokens) == 200
    assert tuple(tokens[: len(case.output_ids)]) == case.output_ids


def test_sampled_stream_goes_on_as_if_nothing_had_happened(system: RunningSystem) -> None:
    options = {"max_tokens": 80, "temperature": 1.0, "seed": 11, "ignore_eos": True}
    undisturbed = system.client.complete("Once upon a time", **options)  # type: ignore[arg-type]
    stream = system.client.generate("Once upon a time", **options)  # type: ignore[arg-type]
    chunks, _ = read_until_its_worker_dies(system, stream)
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == undisturbed.token_ids


def test_deadline_ends_a_request_in_its_phase(system: RunningSystem) -> None:
    with pytest.raises(DeadlineExceeded):
        system.client.complete("Once upon a time", max_tokens=5000, ignore_eos=True, timeout=0.5)


def test_requests_wait_while_a_pools_only_worker_is_replaced(start_system: StartSystem) -> None:
    system = start_system()
    case = reference_case("plain")
    strike(system, "decode-0", signal.SIGKILL)
    answer = ask(system, case)
    assert answer.token_ids == case.output_ids
    wait_until_ready(system)
    quiesce(system)
    system.stop()


def test_rows_make_room_and_go_on_exactly(two_pairs: RunningSystem, start_system: StartSystem) -> None:
    """Answers far longer than their reservations: the pool fills while all of them grow."""
    system = start_system(engine=EngineConfig(dtype="float32", kv_memory_mib=16, step_target_ms=0))
    cases = [case for case in reference_cases() if 30 <= len(case.prompt_ids) <= 65][:6]

    def ask_all(where: RunningSystem) -> list[Completion]:
        with ThreadPoolExecutor(len(cases)) as threads:
            return list(threads.map(lambda case: ask(where, case, 60), cases))

    crowded = ask_all(system)
    assert system.metrics()["twinpool_preemptions_total"] > 0
    assert any(answer.num_resumes for answer in crowded)
    roomy = ask_all(two_pairs)
    assert [answer.token_ids for answer in crowded] == [answer.token_ids for answer in roomy]
    quiesce(system)
    system.stop()


@pytest.mark.skipif(native_library() is None, reason="no native kernels are built for this processor")
def test_in_four_bits_too_a_struck_stream_goes_on_as_if_nothing_had_happened(
    start_system: StartSystem,
) -> None:
    """Narrow weights round activations, but a row's numbers are the same read anew as written one by one."""
    system = start_system(
        prefill=2, decode=2, engine=EngineConfig(dtype="bfloat16", kv_memory_mib=128, step_target_ms=0)
    )
    for temperature in (0.0, 0.7):
        options = {"max_tokens": 200, "temperature": temperature, "seed": 5, "ignore_eos": True}
        undisturbed = system.client.complete("Once upon a time", **options)  # type: ignore[arg-type]
        stream = system.client.generate("Once upon a time", **options)  # type: ignore[arg-type]
        chunks, _ = read_until_its_worker_dies(system, stream)
        summary = chunks[-1].summary
        assert summary is not None
        assert summary.num_resumes == 1
        assert tuple(token for chunk in chunks for token in chunk.token_ids) == undisturbed.token_ids
        wait_until_ready(system)
    quiesce(system)
    system.stop()
