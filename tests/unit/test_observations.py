"""Which of the workers' words count in the metrics: those about users' current attempts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.metrics import Metrics
from router.observations import Observations
from router.ports import Request
from router.scheduling.commands import Fail, Send, SetBack
from router.scheduling.requests import TIMED_AS, Phase, Setback
from tests.unit.small_fleet import SmallFleet, request
from twinpool import messages as m
from twinpool.errors import DeadlineExceeded, PoolUnavailable
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
USER = request(timeout_s=2.0)
CANARY = replace(request("canary", timeout_s=2.0), pair=("p0", "d0"))


class Bench:
    """Observations of a small fleet, told what the dispatcher tells them."""

    def __init__(self, prefill: int = 1) -> None:
        self.fleet = SmallFleet(prefill=prefill)
        self.metrics = Metrics()
        scheduler = self.fleet.scheduler
        self.observations = Observations(self.metrics, scheduler.fleet, scheduler.user_request)

    def hands_off(self, request: Request) -> None:
        """Its first token is there, and its cache is on its way from p0 to d0."""
        self.observations.arrived(request, self.fleet.now)
        self.fleet.arrives(request)
        for command in self.fleet.grants():
            assert isinstance(command, Send)
            self.observations.sent(command.worker_id, command.command)
        self.fleet.reads()
        assert self.fleet.phase(request.request_id) is Phase.HANDING_OFF

    def says(self, worker_id: str, event: m.Event) -> None:
        self.observations.heard(worker_id, event)
        self.fleet.says(worker_id, event)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"twinpool_{name}", labels)


@pytest.mark.parametrize(("word", "name", "labels"), WORDS)
def test_what_becomes_of_a_users_hand_off_is_counted(
    word: m.Event, name: str, labels: dict[str, str]
) -> None:
    bench = Bench()
    bench.hands_off(USER)
    bench.says("d0", word)
    assert bench.value(name, **labels) == 1


@pytest.mark.parametrize(("word", "name", "labels"), WORDS)
def test_what_becomes_of_a_canarys_hand_off_is_not(word: m.Event, name: str, labels: dict[str, str]) -> None:
    bench = Bench()
    bench.hands_off(CANARY)
    bench.says("d0", word)
    assert bench.value(name, **labels) == 0


def test_a_hand_off_that_both_its_ends_report_has_failed_once() -> None:
    bench = Bench()
    bench.hands_off(USER)
    bench.says("d0", WORDS[2][0])
    bench.says("p0", WORDS[3][0])
    assert bench.value("handoff_failures_total", reason="checksum") == 1
    assert bench.value("handoff_failures_total", reason="pair_lost") == 0


def test_a_hand_off_is_counted_for_its_own_pairs_transport_even_once_its_writer_is_gone() -> None:
    bench = Bench(prefill=2)
    ray = bench.fleet.scheduler.fleet.pair("p1", "d0")
    assert ray is not None
    ray.transport = "ray"
    first = next(bench.fleet.scheduler.fleet.pairs())
    assert first is not ray
    first.proven = False
    bench.observations.arrived(USER, bench.fleet.now)
    bench.fleet.arrives(USER)
    for command in bench.fleet.grants():
        assert isinstance(command, Send)
        bench.observations.sent(command.worker_id, command.command)
    bench.fleet.reads(worker_id="p1")
    bench.fleet.goes_down("p1")
    bench.says("d0", m.Written("try-1", 4096, 0.1))
    assert bench.value("handoff_bytes_total", transport="ray") == 4096
    assert bench.value("handoff_bytes_total", transport="shm") == 0


def test_a_users_setbacks_are_counted_and_a_canarys_are_not() -> None:
    bench = Bench()
    bench.observations.arrived(USER, 0.0)
    bench.observations.arrived(CANARY, 0.0)
    for name in ("r", "canary"):
        bench.observations.set_back(SetBack(name, Setback.PREEMPTED, resumed=True))
    assert bench.value("preemptions_total") == 1
    assert bench.value("setbacks_total", reason="preempted") == 1
    assert bench.value("resumes_total", reason="preempted") == 1


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.ENDED])
def test_a_deadline_that_passes_is_counted_for_the_phase_it_passed_in(phase: Phase) -> None:
    bench = Bench()
    bench.observations.arrived(USER, bench.fleet.now)
    bench.fleet.brings(phase, timeout_s=2.0)
    for command in bench.fleet.passes(2.0):
        if isinstance(command, Fail):
            bench.observations.failed(command.request_id, command.error, bench.fleet.now)
    label = TIMED_AS[phase].removesuffix("_s")
    assert bench.value("requests_expired_total", phase=label) == 1


def test_only_users_deadlines_are_counted_and_no_other_failure() -> None:
    bench = Bench()
    bench.observations.arrived(USER, 0.0)
    bench.observations.arrived(CANARY, 0.0)
    bench.observations.failed("canary", DeadlineExceeded("late", phase="queue"), bench.fleet.now)
    bench.observations.failed("r", PoolUnavailable("no worker"), bench.fleet.now)
    bench.observations.failed("r", DeadlineExceeded("late", phase="queue"), bench.fleet.now)
    assert bench.value("requests_expired_total", phase="queue") == 0


def test_steps_of_both_pools_are_measured() -> None:
    bench = Bench()
    bench.says("p0", m.PrefillStep(2, 96, 0.25))
    bench.says("d0", m.StepDone(1, (m.RowToken("try-1", 1, 22, None),), 0.5, LOAD))
    for pool, seconds, batch, tokens in (("prefill", 0.25, 2, 96), ("decode", 0.5, 1, 1)):
        assert bench.value("step_duration_seconds_sum", pool=pool) == seconds
        assert bench.value("batch_size_sum", pool=pool) == batch
        assert bench.value("iteration_tokens_sum", pool=pool) == tokens


def test_processor_time_adds_up_over_a_workers_lives_and_never_falls() -> None:
    bench = Bench()
    for cpu_s in (0.0, 2.0, 3.5, 3.5):
        bench.says("d0", m.LoadReport(blocks_free=16, cpu_s=cpu_s))
    assert bench.value("worker_cpu_seconds_total", pool="decode", worker="d0") == 3.5
    bench.fleet.goes_down("d0")
    bench.fleet.comes_up("d0")
    for cpu_s in (4.0, 3.0):
        bench.says("d0", m.LoadReport(blocks_free=16, cpu_s=cpu_s))
    assert bench.value("worker_cpu_seconds_total", pool="decode", worker="d0") == 7.5
    assert bench.value("worker_cpu_seconds_total", pool="prefill", worker="p0") is None
