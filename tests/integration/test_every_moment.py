"""Whatever happens at whatever moment of a request, no token is lost, repeated or changed, and no block lost.

The grid is every fault at every point over both transports. A request stands still at the point while its
client leaves, aborts it, or its deadline passes, or while a worker of its pair is killed; or the worker
that has come there dies, has a bug, stops or is slow. A neighbour is somewhere on its way meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from itertools import product
from pathlib import Path

import pytest

from tests.support.faults.plans import Action, Point
from tests.support.models.reference import reference_case
from tests.support.system.asking import Asking
from tests.support.system.patience import PATIENT_S
from tests.support.system.running import StartSystem
from tests.support.system.watched import WatchedSystem, start_watched
from twinpool.config import EngineConfig, RouterConfig
from twinpool.errors import DeadlineExceeded
from twinpool.types import FinishReason

CASE = reference_case("65 tokens")
CHUNK_TOKENS = 32
"""The prompt is read in three chunks, so that its cache moves in more than one push."""
NUM_TOKENS = 6
NEIGHBOUR = reference_case("49 tokens")
NUM_NEIGHBOURS_TOKENS = 12


class Fault(StrEnum):
    """What happens at a point."""

    LEAVE = "client leaves"
    ABORT = "abort"
    DEADLINE = "deadline"
    PREFILL_CRASH = "prefill crash"
    DECODE_CRASH = "decode crash"
    DEATH = "death there"
    BUG = "bug there"
    STUCK = "stuck there"
    SLOW = "slow there"


ACTIONS = {
    Fault.DEATH: Action.KILL,
    Fault.BUG: Action.RAISE,
    Fault.STUCK: Action.STOP,
    Fault.SLOW: Action.SLEEP,
}
"""What a worker does by itself; at all other faults it stands still meanwhile."""
TRANSPORTS = ("shm", "ray")
NTH = {Point.STEP_BEGUN: 2, Point.STEP_DONE: 3, Point.TOKEN: 3}
"""The second chunk is begun, the third ends the prompt; all else is the first time."""
PHASES = (
    (Point.RESERVED, Point.RECEIVED, Point.OFFERED, Point.BEGIN),
    (Point.PICKED, Point.STEP_BEGUN, Point.STEP_DONE, Point.FIRST_TOKEN),
    (Point.PUSH, Point.COPYING, Point.COPY_ENDED, Point.WRITTEN),
    (Point.ADMITTED, Point.TOKEN),
    (Point.FINISHED, Point.EVICTED),
)

Cell = tuple[str, Fault, Point]


def pairwise_cover() -> list[Cell]:
    """Each fault in each phase, each fault and each phase over each transport, and each point at least once.

    Within a phase the faults take turns at the points, the transports along both. What a worker
    does by itself ends much as a crash or not at all, and is left to the whole grid.
    """
    return [
        (TRANSPORTS[(row + column) % 2], fault, points[row % len(points)])
        for (row, fault), (column, points) in product(enumerate(Fault), enumerate(PHASES))
        if fault not in ACTIONS
    ]


def cells() -> list[object]:
    """The cover runs always, the whole grid with `make chaos`; transport by transport."""
    cover = set(pairwise_cover())
    return [
        pytest.param(
            transport,
            fault,
            point,
            id=f"{transport}-{fault}-{point}".replace(" ", "-"),
            marks=() if (transport, fault, point) in cover else pytest.mark.chaos,
        )
        for transport, fault, point in product(TRANSPORTS, Fault, Point)
    ]


class WatchedPairs:
    """One pair for all cells of a transport and a kind of fault; they come in order, so one runs at a time.

    What stands still by itself must be replaced soon, what a test holds must not.
    """

    def __init__(self, start_system: StartSystem, folder: Path) -> None:
        self._start_system = start_system
        self._folder = folder
        self._running: dict[tuple[str, float], WatchedSystem] = {}

    def over(self, transport: str, stuck_after_s: float) -> WatchedSystem:
        key = transport, stuck_after_s
        if key not in self._running:
            for other in self._running.values():
                other.system.stop()
            self._running[key] = start_watched(
                self._start_system,
                self._folder / f"{transport}-{stuck_after_s:g}",
                transport=transport,
                engine=EngineConfig(
                    dtype="float32", kv_memory_mib=32, prefill_budget_tokens=CHUNK_TOKENS, step_target_ms=0
                ),
                router=RouterConfig(grace_s=2.0, stuck_after_s=stuck_after_s),
            )
        return self._running[key]


@pytest.fixture(scope="module")
def pairs(start_system: StartSystem, tmp_path_factory: pytest.TempPathFactory) -> WatchedPairs:
    return WatchedPairs(start_system, tmp_path_factory.mktemp("faults"))


@pytest.fixture
def watched(pairs: WatchedPairs, transport: str, fault: Fault) -> Iterator[WatchedSystem]:
    """At rest, whatever the test did."""
    watched = pairs.over(transport, 4.0 if fault in ACTIONS else PATIENT_S)
    yield watched
    watched.come_to_rest()


def test_cover_is_pairwise() -> None:
    cover = pairwise_cover()
    phase_of = {point: phase for phase, points in enumerate(PHASES) for point in points}
    faults = [fault for fault in Fault if fault not in ACTIONS]
    assert {point for _, _, point in cover} == set(Point)
    assert {(fault, phase_of[point]) for _, fault, point in cover} == set(product(faults, range(len(PHASES))))
    assert {(transport, fault) for transport, fault, _ in cover} == set(product(TRANSPORTS, faults))
    assert {(transport, phase_of[point]) for transport, _, point in cover} == set(
        product(TRANSPORTS, range(len(PHASES)))
    )


def let_deadline_pass(watched: WatchedSystem, request_id: str) -> None:
    """Now; a request that has ended has none any more."""
    requests = watched.system.system.dispatcher.scheduler.requests

    def expire() -> None:
        if state := requests.get(request_id):
            state.expires_at = -math.inf

    watched.system.call(expire)


@pytest.mark.parametrize(("transport", "fault", "point"), cells())
def test_stream_and_blocks_survive(watched: WatchedSystem, fault: Fault, point: Point) -> None:
    action = ACTIONS.get(fault, Action.HOLD)
    armed = watched.faults.arm(point, num_tokens=len(CASE.prompt_ids), action=action, nth=NTH.get(point, 1))
    neighbour = Asking(watched.system, NEIGHBOUR, NUM_NEIGHBOURS_TOKENS)
    asking = Asking(watched.system, CASE, NUM_TOKENS)
    armed.wait()
    over = point is Point.EVICTED
    """The client has its whole answer already."""
    match fault:
        case Fault.LEAVE:
            asking.leave()
        case Fault.ABORT:
            assert watched.system.client.abort(asking.request_id) == {asking.request_id: not over}
        case Fault.DEADLINE:
            let_deadline_pass(watched, asking.request_id)
            asking.end()
        case Fault.PREFILL_CRASH:
            watched.kill("prefill-0")
        case Fault.DECODE_CRASH:
            watched.kill("decode-0")
    armed.release()
    asking.end()
    neighbour.end()
    assert neighbour.answered_exactly, neighbour
    assert asking.begins_exactly, asking
    match fault:
        case Fault.LEAVE:
            assert asking.error is None
        case Fault.ABORT if not over:
            assert asking.finish_reason is FinishReason.ABORT
        case Fault.DEADLINE if not over:
            assert isinstance(asking.error, DeadlineExceeded)
        case _:
            assert asking.answered_exactly, asking
