"""Which of the workers' words count in the metrics: those about users' current attempts."""

from __future__ import annotations

import pytest

from router.metrics import Metrics
from router.observations import Observations
from router.scheduling.commands import SetBack
from router.scheduling.requests import Phase, Setback
from tests.unit.small_fleet import SmallFleet, request
from twinpool import messages as m
from twinpool.messages import PrefillOutcome, ReleaseReason

LOAD = m.LoadReport()
WORDS: list[tuple[m.Event, str, dict[str, str]]] = [
    (m.Written("try-1", 4096, 0.1), "handoff_seconds_count", {"transport": "shm"}),
    (m.Released("try-1", ReleaseReason.EXPIRED, "", LOAD), "leases_expired_total", {}),
    (
        m.Released("try-1", ReleaseReason.HANDOFF_FAILED, "checksum differs", LOAD),
        "handoff_failures_total",
        {"reason": "checksum"},
    ),
    (
        m.PrefillEnded("try-1", PrefillOutcome.PAIR_LOST, "", LOAD),
        "handoff_failures_total",
        {"reason": "pair_lost"},
    ),
]


class Bench:
    """Observations of a small fleet."""

    def __init__(self) -> None:
        self.fleet = SmallFleet()
        self.metrics = Metrics()
        scheduler = self.fleet.scheduler
        self.observations = Observations(self.metrics, scheduler.fleet, scheduler.serves_user)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"twinpool_{name}", labels)


@pytest.mark.parametrize(("word", "name", "labels"), WORDS)
def test_what_becomes_of_a_users_hand_off_is_counted(
    word: m.Event, name: str, labels: dict[str, str]
) -> None:
    bench = Bench()
    bench.fleet.brings(Phase.HANDING_OFF)
    bench.observations.heard("d0", word)
    assert bench.value(name, **labels) == 1


@pytest.mark.parametrize(("word", "name", "labels"), WORDS)
def test_what_becomes_of_a_canarys_hand_off_is_not(word: m.Event, name: str, labels: dict[str, str]) -> None:
    bench = Bench()
    bench.fleet.arrives(request("canary", pair=("p0", "d0")))
    bench.observations.heard("d0", word)
    assert bench.value(name, **labels) == 0


def test_a_hand_off_that_both_its_ends_report_has_failed_once() -> None:
    bench = Bench()
    bench.fleet.brings(Phase.HANDING_OFF)
    words = (("d0", WORDS[2][0]), ("p0", WORDS[3][0]))
    for worker_id, word in words:
        bench.observations.heard(worker_id, word)
        bench.fleet.says(worker_id, word)
    assert bench.value("handoff_failures_total", reason="checksum") == 1
    assert bench.value("handoff_failures_total", reason="pair_lost") == 0


def test_a_users_setbacks_are_counted_and_a_canarys_are_not() -> None:
    bench = Bench()
    bench.observations.arrived(request("r"), 0.0)
    bench.observations.arrived(request("canary", pair=("p0", "d0")), 0.0)
    for name in ("r", "canary"):
        bench.observations.set_back(SetBack(name, Setback.PREEMPTED, resumed=True))
    assert bench.value("preemptions_total") == 1
    assert bench.value("resumes_total", reason="preempted") == 1
