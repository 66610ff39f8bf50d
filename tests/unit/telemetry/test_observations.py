"""What of all that the scheduler says counts in the metrics: what is about users' current attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from router.scheduling import attempts
from router.scheduling.events import Cancelled, PoolGivenUp
from router.scheduling.phases import TIMED_AS, Phase
from router.scheduling.scheduler import SchedulerLimits
from router.scheduling.values import Request
from router.telemetry.metrics import Metrics
from router.telemetry.observations import Observations
from router.telemetry.series import HANDOFF_FAILURES
from tests.support.router.draining_fleet import starts_to_move
from tests.support.router.small_fleet import LIMITS, SmallFleet, attempt, failures, handoff, request
from twinpool.sampling.params import SamplingParams
from twinpool.session import messages as m
from twinpool.session.messages import PrefillOutcome, ReleaseReason
from twinpool.types import FinishReason, Token

LOAD = m.LoadReport()
WORDS: list[tuple[m.Event, str, dict[str, str]]] = [
    (m.Written(handoff(1), 4096, 0.1), "handoff_seconds_count", {"transport": "shm"}),
    (m.Released(attempt(1), ReleaseReason.EXPIRED, "", LOAD), "leases_expired_total", {}),
    (
        m.Released(attempt(1), ReleaseReason.DAMAGED, "", LOAD),
        "handoff_failures_total",
        {"reason": "checksum"},
    ),
    (
        m.PrefillEnded(handoff(1), PrefillOutcome.PAIR_LOST, "", LOAD),
        "handoff_failures_total",
        {"reason": "pair_lost"},
    ),
    (
        m.Released(attempt(1), ReleaseReason.CONNECTION_ENDED, "", LOAD),
        "handoff_failures_total",
        {"reason": "pair_lost"},
    ),
    (
        m.Released(attempt(1), ReleaseReason.WRITER_GONE, "", LOAD),
        "handoff_failures_total",
        {"reason": "pair_lost"},
    ),
]
USER = request(timeout_s=2.0)
CANARY = replace(request("canary", timeout_s=2.0), pair=("p0", "d0"))


class Bench:
    """Observations of a small fleet."""

    def __init__(self, fleet: SmallFleet | None = None) -> None:
        self.fleet = fleet or SmallFleet()
        self.metrics = Metrics()
        self.fleet.listeners.append(Observations(self.metrics).hear)

    def prefills(self, request: Request) -> None:
        """It is read on p0, to be handed off to d0."""
        self.fleet.arrives(request)
        self.fleet.grants()
        assert self.fleet.phase(request.request_id) is Phase.PREFILLING

    def hands_off(self, request: Request) -> None:
        """Its first token is there, and its cache is on its way from p0 to d0."""
        self.prefills(request)
        self.fleet.reads()
        assert self.fleet.phase(request.request_id) is Phase.HANDING_OFF

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"twinpool_{name}", labels)

    def failed_handoffs(self) -> dict[str, float]:
        """Those counted, by reason."""
        counts = {reason: self.value("handoff_failures_total", reason=reason) for reason in HANDOFF_FAILURES}
        return {reason: count for reason, count in counts.items() if count}


@pytest.mark.parametrize(("word", "name", "labels"), WORDS)
def test_what_becomes_of_a_users_hand_off_is_counted(
    word: m.Event, name: str, labels: dict[str, str]
) -> None:
    bench = Bench()
    bench.hands_off(USER)
    bench.fleet.says("d0", word)
    assert bench.value(name, **labels) == 1


@pytest.mark.parametrize(("word", "name", "labels"), WORDS)
def test_what_becomes_of_a_canarys_hand_off_is_not(word: m.Event, name: str, labels: dict[str, str]) -> None:
    bench = Bench()
    bench.hands_off(CANARY)
    bench.fleet.says("d0", word)
    assert bench.value(name, **labels) == 0


def test_a_hand_off_that_both_its_ends_report_has_failed_once() -> None:
    bench = Bench()
    bench.hands_off(USER)
    bench.fleet.says("d0", WORDS[2][0])
    bench.fleet.says("p0", WORDS[3][0])
    assert bench.failed_handoffs() == {"checksum": 1}


@pytest.mark.parametrize("first", ["d0", "p0"])
def test_a_lease_that_expires_is_one_refused_hand_off_whoever_notices_first(first: str) -> None:
    words: dict[str, m.Event] = {
        "d0": m.Released(attempt(1), ReleaseReason.EXPIRED, "no progress", LOAD),
        "p0": m.PrefillEnded(handoff(1), PrefillOutcome.REFUSED, "", LOAD),
    }
    bench = Bench()
    bench.prefills(USER)
    for worker_id in (first, *(words.keys() - {first})):
        bench.fleet.says(worker_id, words[worker_id])
    assert bench.value("leases_expired_total") == 1
    assert bench.failed_handoffs() == {"refused": 1}


PAIR_LOST: dict[str, m.Event] = {
    "p0": m.PrefillEnded(handoff(1), PrefillOutcome.PAIR_LOST, "", LOAD),
    "d0": m.Released(attempt(1), ReleaseReason.CONNECTION_ENDED, "", LOAD),
}


@pytest.mark.parametrize("brings", [Bench.prefills, Bench.hands_off])
@pytest.mark.parametrize(("lost", "other"), [("p0", "d0"), ("d0", "p0")])
@pytest.mark.parametrize("noticed_first_by", ["router", "worker"])
@pytest.mark.parametrize("limits", [LIMITS, replace(LIMITS, most_attempts=1)], ids=["again", "last"])
def test_a_hand_off_that_a_lost_worker_ends_is_one_lost_pair_whoever_notices_first(
    brings: Callable[[Bench, Request], None],
    lost: str,
    other: str,
    noticed_first_by: str,
    limits: SchedulerLimits,
) -> None:
    bench = Bench(SmallFleet(limits=limits))
    brings(bench, USER)
    if noticed_first_by == "router":
        bench.fleet.goes_down(lost)
        bench.fleet.says(other, PAIR_LOST[other])
    else:
        bench.fleet.says(other, PAIR_LOST[other])
        bench.fleet.goes_down(lost)
    assert bench.failed_handoffs() == {"pair_lost": 1}


def test_a_worker_lost_before_or_after_the_hand_off_loses_no_hand_off() -> None:
    reserving = Bench()
    reserving.fleet.arrives(USER)
    reserving.fleet.goes_down("d0")
    decoding = Bench()
    decoding.hands_off(USER)
    decoding.fleet.says("d0", m.Written(handoff(1), 4096, 0.1))
    decoding.fleet.goes_down("d0")
    alone = Bench()
    alone.fleet.arrives(replace(USER, params=SamplingParams(max_tokens=1)))
    alone.fleet.goes_down("p0")
    assert reserving.failed_handoffs() == decoding.failed_handoffs() == alone.failed_handoffs() == {}


@pytest.mark.parametrize("first", ["source", "target"])
def test_a_rows_move_is_no_hand_off_whichever_of_its_workers_speaks_first(first: str) -> None:
    bench = Bench(SmallFleet(decode=2, blocks=64))
    bench.hands_off(request(max_tokens=9))
    bench.fleet.says("d0", m.Written(handoff(1), 4096, 0.05))
    bench.fleet.says("p0", m.PrefillEnded(handoff(1), PrefillOutcome.DONE, "", LOAD))
    bench.fleet.says(
        "d0", m.StepDone(1, (m.RowToken(attempt(1), 1, Token(22), None),), 0.5, bench.fleet.loads["d0"])
    )
    starts_to_move(bench.fleet)
    bench.fleet.grants(2, "d1")
    words: list[tuple[str, m.Event]] = [
        ("d0", m.RowMoved(attempt(1), handoff(2), 2)),
        ("d1", m.Written(handoff(2), 4096, 3.0)),
    ]
    for worker_id, word in words if first == "source" else reversed(words):
        bench.fleet.says(worker_id, word)
    assert bench.fleet.choice("r").decode_id == "d1"
    assert bench.value("handoff_seconds_count", transport="shm") == 1
    assert bench.value("handoff_seconds_sum", transport="shm") == 0.05
    assert bench.value("handoff_bytes_total", transport="shm") == 4096
    bench.fleet.says("d1", m.Released(attempt(2), ReleaseReason.CONNECTION_ENDED, "", LOAD))
    assert bench.failed_handoffs() == {}


def test_a_hand_off_is_counted_for_its_own_pairs_transport_even_once_its_writer_is_gone() -> None:
    bench = Bench(SmallFleet(prefill=2))
    ray = bench.fleet.scheduler.fleet.pair("p1", "d0")
    assert ray is not None
    ray.transport = "ray"
    first = next(bench.fleet.scheduler.fleet.pairs())
    assert first is not ray
    first.proven = False
    bench.fleet.arrives(USER)
    bench.fleet.grants()
    bench.fleet.reads(worker_id="p1")
    bench.fleet.goes_down("p1")
    bench.fleet.says("d0", m.Written(handoff(1), 4096, 0.1))
    assert bench.value("handoff_bytes_total", transport="ray") == 4096
    assert bench.value("handoff_bytes_total", transport="shm") == 0


@pytest.mark.parametrize(("request_", "count"), [(USER, 1), (CANARY, 0)])
def test_a_users_setbacks_are_counted_and_a_canarys_are_not(request_: Request, count: int) -> None:
    bench = Bench()
    bench.hands_off(request_)
    bench.fleet.releases(ReleaseReason.EVICTED)
    assert bench.value("setbacks_total", reason="expired") == count
    assert bench.value("resumes_total", reason="expired") == count


def test_a_preemption_is_a_setback_and_a_resume() -> None:
    bench = Bench()
    bench.fleet.decodes("a", 1)
    bench.fleet.decodes("b", 2)
    bench.fleet.pauses(attempt(1))
    assert bench.value("preemptions_total") == 1
    assert bench.value("setbacks_total", reason="preempted") == 1
    assert bench.value("resumes_total", reason="preempted") == 1


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.ENDED])
def test_a_deadline_that_passes_is_counted_for_the_phase_it_passed_in(phase: Phase) -> None:
    bench = Bench()
    bench.fleet.brings(phase, timeout_s=2.0)
    bench.fleet.passes(2.0)
    label = TIMED_AS[phase].removesuffix("_s")
    assert bench.value("requests_expired_total", phase=label) == 1


def test_a_deadline_is_counted_as_well_where_the_client_acts_on_it_first() -> None:
    bench = Bench()
    bench.prefills(USER)
    bench.fleet.now += 2.0
    bench.fleet.feed(Cancelled("r"))
    assert bench.value("requests_expired_total", phase="prefill") == 1
    assert (bench.metrics.totals.requests_failed, bench.metrics.totals.requests_left) == (1, 0)


def test_a_first_token_is_counted_from_the_arrival_of_its_call_and_the_next_from_it() -> None:
    bench = Bench()
    bench.prefills(request(waited_s=0.5))
    bench.fleet.now += 2.0
    bench.fleet.reads()
    assert bench.value("time_to_first_token_seconds_sum") == 2.5
    bench.fleet.now += 0.25
    bench.fleet.steps(m.RowToken(attempt(1), 1, Token(22), None))
    assert bench.value("inter_token_latency_seconds_sum") == 0.25
    assert bench.value("generation_tokens_total") == 2


def test_only_users_deadlines_are_counted_and_no_other_failure() -> None:
    bench = Bench()
    bench.fleet.feed(PoolGivenUp("no worker"))
    bench.fleet.arrives(USER)
    bench.fleet.feed(PoolGivenUp(""))
    bench.fleet.arrives(CANARY)
    assert list(failures(bench.fleet.passes(2.0))) == ["canary"]
    assert bench.value("requests_expired_total", phase="queue") == 0
    assert bench.metrics.totals.requests_failed == 1


def test_of_a_request_that_ends_well_every_choices_finish_reason_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "NUM_CHOICES", 2)
    bench = Bench()
    bench.fleet.arrives(USER)
    for number in (1, 2):
        bench.fleet.grants(number)
    bench.fleet.reads(0, FinishReason.STOP, number=1)
    assert bench.value("request_success_total", finished_reason="stop") == 0
    bench.fleet.reads(21, number=2)
    bench.fleet.steps(m.RowToken(attempt(2), 1, Token(22), FinishReason.LENGTH))
    assert bench.value("request_success_total", finished_reason="stop") == 1
    assert bench.value("request_success_total", finished_reason="length") == 1
    assert bench.value("request_generation_tokens_sum") == 3
    assert bench.metrics.totals.requests_finished == 1


def test_steps_of_both_pools_are_measured() -> None:
    bench = Bench()
    bench.fleet.says("p0", m.PrefillStep(2, 96, 0.25))
    bench.fleet.says("d0", m.StepDone(1, (m.RowToken(attempt(1), 1, Token(22), None),), 0.5, LOAD))
    for pool, seconds, batch, tokens in (("prefill", 0.25, 2, 96), ("decode", 0.5, 1, 1)):
        assert bench.value("step_duration_seconds_sum", pool=pool) == seconds
        assert bench.value("batch_size_sum", pool=pool) == batch
        assert bench.value("iteration_tokens_sum", pool=pool) == tokens


def test_processor_time_adds_up_over_a_workers_lives_and_never_falls() -> None:
    bench = Bench()
    for cpu_s in (0.0, 2.0, 3.5, 3.5):
        bench.fleet.says("d0", m.LoadReport(blocks_free=16, cpu_s=cpu_s))
    assert bench.value("worker_cpu_seconds_total", pool="decode", worker="d0") == 3.5
    bench.fleet.goes_down("d0")
    bench.fleet.comes_up("d0")
    for cpu_s in (4.0, 3.0):
        bench.fleet.says("d0", m.LoadReport(blocks_free=16, cpu_s=cpu_s))
    assert bench.value("worker_cpu_seconds_total", pool="decode", worker="d0") == 7.5
    assert bench.value("worker_cpu_seconds_total", pool="prefill", worker="p0") is None
