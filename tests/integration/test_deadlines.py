"""A client's deadline is kept by the whole system in every phase of its request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from router.scheduling.phases import Phase
from tests.support.faults.plans import Point
from tests.support.models.reference import reference_case
from tests.support.system.asking import Asking
from tests.support.system.running import StartSystem
from tests.support.system.watched import WatchedSystem, start_watched, wait_until
from twinpool.config import EngineConfig, RouterConfig
from twinpool.errors import DeadlineExceeded

DEADLINE_S = 2.0
CASE = reference_case("65 tokens")
NUM_TOKENS = 6
OTHER = reference_case("33 tokens")
HELD_AT = {
    Phase.RESERVING: Point.RESERVED,
    Phase.PREFILLING: Point.STEP_BEGUN,
    Phase.HANDING_OFF: Point.WRITTEN,
    Phase.DECODING: Point.FINISHED,
}
"""Where a request stands still in each phase that workers can hold it in."""


@pytest.fixture(scope="module")
def one_pair(start_system: StartSystem, tmp_path_factory: pytest.TempPathFactory) -> WatchedSystem:
    """Reads one prompt at a time."""
    return start_watched(
        start_system,
        tmp_path_factory.mktemp("faults") / "plans",
        engine=EngineConfig(dtype="float32", kv_memory_mib=32),
        router=RouterConfig(grace_s=2.0, prefill_max_prompts=1),
    )


@pytest.fixture
def watched(one_pair: WatchedSystem) -> Iterator[WatchedSystem]:
    """At rest again after the test."""
    yield one_pair
    one_pair.come_to_rest()


def require_expired(asking: Asking, phase: Phase) -> None:
    asking.end()
    assert isinstance(asking.error, DeadlineExceeded), asking
    told = f"the deadline passed while {phase.value.replace('_', ' ')}"
    assert str(asking.error) in (told, "Deadline Exceeded"), phase  # the latter where the client was first
    assert asking.begins_exactly, asking


@pytest.mark.parametrize("phase", HELD_AT)
def test_deadline_is_kept_in_whatever_phase_a_worker_holds_a_request(
    watched: WatchedSystem, phase: Phase
) -> None:
    armed = watched.faults.arm(HELD_AT[phase], num_tokens=len(CASE.prompt_ids))
    asking = Asking(watched.system, CASE, NUM_TOKENS, DEADLINE_S)
    armed.wait()
    require_expired(asking, phase)
    armed.release()


def test_deadline_is_kept_in_the_queue(watched: WatchedSystem) -> None:
    armed = watched.faults.arm(Point.STEP_BEGUN, num_tokens=len(CASE.prompt_ids))
    before = Asking(watched.system, CASE, NUM_TOKENS)
    armed.wait()
    waiting = Asking(watched.system, OTHER, NUM_TOKENS, DEADLINE_S)
    wait_until(lambda: watched.status().queue.requests == 1)
    require_expired(waiting, Phase.QUEUED)
    assert watched.status().queue.requests == 0
    armed.release()
    before.end()
    assert before.answered_exactly, before
