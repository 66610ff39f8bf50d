"""More requests than the pools hold: everyone waits their turn, and everyone gets their own tokens."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

import pytest

from router.scheduling.commands import SchedulerSaid
from router.scheduling.events import SchedulerEvent, WorkerSaid
from tests.support.faults.plans import Point
from tests.support.models.reference import reference_case, reference_cases
from tests.support.system.asking import Asking
from tests.support.system.patience import PATIENT_S
from tests.support.system.running import RunningSystem, StartSystem, quiesce
from tests.support.system.watched import start_watched, wait_until
from twinpool.config import EngineConfig, RouterConfig
from twinpool.errors import InvalidRequest
from twinpool.session.messages import StepDone

SMALL_MIB = 40
"""About 56 blocks, 900 tokens: one long prompt and a few short ones."""
NUM_REQUESTS = 200
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def small(start_system: StartSystem) -> RunningSystem:
    return start_system(
        engine=EngineConfig(dtype="float32", kv_memory_mib=SMALL_MIB),
        router=RouterConfig(grace_s=2.0, stuck_after_s=PATIENT_S, queue_max_requests=NUM_REQUESTS),
    )


def batches_while_others_wait(system: RunningSystem) -> list[int]:
    """A list that grows with the rows of each decode step made while requests are queued."""
    scheduler, batches = system.system.dispatcher.scheduler, list[int]()
    handle = scheduler.handle

    def handle_and_note(event: SchedulerEvent, now: float) -> list[SchedulerSaid]:
        match event:
            case WorkerSaid(message=StepDone(tokens=tokens)) if scheduler.queue.num_requests:
                batches.append(len(tokens))
        return handle(event, now)

    scheduler.handle = handle_and_note  # type: ignore[method-assign]
    return batches


@pytest.mark.timeout(400)
def test_two_hundred_at_once_on_a_pool_far_too_small_all_finish_right(small: RunningSystem) -> None:
    batches = batches_while_others_wait(small)
    short = [case for case in reference_cases() if len(case.prompt_ids) <= 100]
    long = [case for case in reference_cases() if len(case.prompt_ids) >= 500]
    cases = [*islice(cycle(short), NUM_REQUESTS - len(long)), *long]
    random.Random(1).shuffle(cases)

    def right(index: int) -> bool:
        case = cases[index]
        answer = small.client.complete(
            case.prompt_ids, max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True, timeout=300.0
        )
        return answer.token_ids == case.output_ids[:NUM_TOKENS]

    with ThreadPoolExecutor(NUM_REQUESTS) as threads:
        answers = list(threads.map(right, range(NUM_REQUESTS)))
    assert all(answers)
    assert batches
    # Rows enter while others run: steps of one row are the exception, not the rule.
    assert sum(rows > 1 for rows in batches) > len(batches) / 2
    quiesce(small)


def test_prompt_larger_than_a_whole_pool_is_refused_at_the_door(small: RunningSystem) -> None:
    with pytest.raises(InvalidRequest, match="cache holds") as refusal:
        small.client.complete([1] * 1000, max_tokens=8)
    assert refusal.value.field == "token_ids.ids"
    with pytest.raises(InvalidRequest) as refusal:
        small.client.complete([1] * 10, max_tokens=5000)
    assert "max_tokens" in refusal.value.field
    quiesce(small)


def test_absent_max_tokens_is_capped_to_what_fits(small: RunningSystem) -> None:
    stream = small.client.generate([1] * 10, temperature=0.0)
    next(stream)
    stream.close()
    quiesce(small)


def test_rows_preempted_after_their_hand_off_go_on_as_the_reference(
    start_system: StartSystem, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Seven hand-offs fill the decode pool, each row soon wants a block more, and three requests wait."""
    watched = start_watched(
        start_system,
        tmp_path_factory.mktemp("faults") / "one",
        engine=EngineConfig(dtype="float32", kv_memory_mib=16),
        router=RouterConfig(grace_s=2.0, stuck_after_s=PATIENT_S, prefill_max_prompts=16),
    )
    case, first = reference_case("47 tokens"), reference_case("7 tokens")
    # While the engine stands still, all come to wait for it: they are read, and grow, together.
    held = watched.faults.arm(Point.PICKED, num_tokens=len(first.prompt_ids))
    asking = [Asking(watched.system, first, 1)]
    held.wait()
    asking += [Asking(watched.system, case, len(case.output_ids)) for _ in range(10)]
    wait_until(lambda: watched.worker("decode-0").blocks_used == 21)
    wait_until(lambda: watched.status().queue.requests == 3)
    held.release()
    for each in asking:
        each.end()
        assert each.answered_exactly, each
    assert any(each.summary and each.summary.num_resumes for each in asking)
    assert watched.system.metrics()["twinpool_preemptions_total"] > 0
    watched.come_to_rest()
    watched.system.stop()
