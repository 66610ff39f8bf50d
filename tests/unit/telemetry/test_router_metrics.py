"""Counters and histograms: named as promised, zero from the start, labels bounded."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import fields, replace

import pytest

from router.scheduling.phases import TIMED_AS, Setback
from router.telemetry.gauges import PAIR_STATES, SnapshotGauges
from router.telemetry.loop_lag import measure_loop_lag
from router.telemetry.metrics import Metrics
from router.telemetry.series import PHASES, RESUMES, SETBACKS
from tests.support.router.fakes import SNAPSHOT, TIMING
from twinpool.types import FinishReason, Pool, Timing, Usage
from twinpool.views import PairView

NAMES = """
requests requests_in_flight queue_depth queue_tokens admission_rejections request_success client_disconnects
request_duration_seconds time_to_first_token_seconds inter_token_latency_seconds
request_time_per_output_token_seconds request_prompt_tokens request_generation_tokens prompt_tokens
generation_tokens queue_time_seconds prefill_time_seconds handoff_wait_seconds decode_time_seconds
handoff_seconds handoff_bytes handoff_failures handoffs_in_flight leases_expired num_requests_running
num_requests_running_limit
num_requests_waiting kv_blocks_used kv_blocks_cached kv_blocks_total kv_cache_usage_ratio batch_size
step_duration_seconds iteration_tokens workers target_workers worker_restarts build cache_config
preemptions resumes setbacks row_moves
requests_expired scale_events pairs kv_blocks_quarantined event_loop_lag_seconds
worker_cpu_seconds worker_resident_memory_bytes
"""


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"twinpool_{name}", labels)


def test_every_promised_metric_is_there_and_no_other(metrics: Metrics) -> None:
    metrics.describe("1.2.3", {"block_size": "16"})
    metrics.registry.register(SnapshotGauges(lambda: SNAPSHOT))
    names = {family.name for family in metrics.registry.collect()}
    assert {name for name in names if not name.startswith("process_")} == {
        f"twinpool_{name}" for name in NAMES.split()
    }
    assert value(metrics, "build_info", version="1.2.3") == 1
    assert value(metrics, "cache_config_info", block_size="16") == 1


def test_series_exist_before_their_first_event(metrics: Metrics) -> None:
    assert value(metrics, "requests_total", method="Chat", code="UNAVAILABLE") == 0
    assert value(metrics, "admission_rejections_total", reason="queue_full") == 0
    assert value(metrics, "request_success_total", finished_reason="abort") == 0
    assert value(metrics, "handoff_seconds_count", transport="ray") == 0
    assert value(metrics, "handoff_failures_total", reason="pair_lost") == 0
    assert value(metrics, "step_duration_seconds_count", pool="decode") == 0
    assert value(metrics, "worker_restarts_total", pool="prefill", reason="exited") == 0
    assert value(metrics, "requests_expired_total", phase="handoff_wait") == 0
    assert value(metrics, "setbacks_total", reason="refused") == 0
    assert value(metrics, "scale_events_total", pool="decode", direction="down") == 0
    assert value(metrics, "batch_size_count", pool="prefill") == 0


def test_nothing_is_labelled_by_what_a_client_or_an_error_says(metrics: Metrics) -> None:
    before = sum(len(family.samples) for family in metrics.registry.collect())
    metrics.request_rejected("SOMETHING_NEW")
    metrics.handoff_failed("something new")
    metrics.handoff_done("pigeon", 10, 0.1)
    metrics.worker_restarted(Pool.DECODE, "something new")
    metrics.request_expired("in the mail")
    metrics.set_back("something new", resumed=True)
    assert sum(len(family.samples) for family in metrics.registry.collect()) == before
    assert value(metrics, "handoff_bytes_total", transport="other") == 10


def test_no_creation_times(metrics: Metrics) -> None:
    samples = (sample.name for family in metrics.registry.collect() for sample in family.samples)
    assert not any(name.endswith("_created") for name in samples)


def test_tokens_that_come_together_share_their_gap(metrics: Metrics) -> None:
    metrics.first_token(0.5)
    metrics.token_gap(0.6, 3)
    metrics.token_gap(0.1, 1)
    assert value(metrics, "inter_token_latency_seconds_count") == 4
    assert value(metrics, "inter_token_latency_seconds_sum") == pytest.approx(0.7)
    assert value(metrics, "generation_tokens_total") == 5
    assert value(metrics, "time_to_first_token_seconds_sum") == 0.5


def test_a_single_token_has_no_time_per_token(metrics: Metrics) -> None:
    metrics.request_finished([FinishReason.LENGTH], Timing(0.1, 0.2), Usage(3, 1))
    assert value(metrics, "request_time_per_output_token_seconds_count") == 0
    assert value(metrics, "prompt_tokens_total") == 3


def test_a_request_that_ended_is_in_every_histogram_once(metrics: Metrics) -> None:
    metrics.request_finished([FinishReason.STOP], TIMING, Usage(10, 5))
    for name in ("request_duration", "queue_time", "prefill_time", "handoff_wait", "decode_time"):
        assert value(metrics, f"{name}_seconds_count") == 1
    assert value(metrics, "request_generation_tokens_sum") == 5


def test_an_attempt_set_back_is_a_resume_if_it_had_tokens_and_a_preemption_if_it_made_room(
    metrics: Metrics,
) -> None:
    metrics.set_back("preempted", resumed=True)
    metrics.set_back("preempted", resumed=False)
    metrics.set_back("worker_lost", resumed=True)
    metrics.set_back("worker_lost", resumed=False)
    metrics.set_back("refused", resumed=False)
    metrics.set_back("something new", resumed=True)
    assert value(metrics, "preemptions_total") == 2
    setbacks = {reason: value(metrics, "setbacks_total", reason=reason) for reason in SETBACKS}
    resumes = {reason: value(metrics, "resumes_total", reason=reason) for reason in RESUMES}
    assert {reason: count for reason, count in setbacks.items() if count} == {
        "preempted": 2,
        "worker_lost": 2,
        "refused": 1,
        "other": 1,
    }
    assert {reason: count for reason, count in resumes.items() if count} == {
        "preempted": 1,
        "worker_lost": 1,
        "other": 1,
    }


def test_every_setback_has_its_series_and_so_has_every_one_that_may_resume() -> None:
    assert {*SETBACKS} == {*Setback, "other"}
    assert {*RESUMES} == {*SETBACKS} - {"refused"}


def test_every_phase_has_its_series() -> None:
    assert {*PHASES} == {phase.removesuffix("_s") for phase in TIMED_AS.values()}
    assert [f"{phase}_s" for phase in PHASES] == [field.name for field in fields(Timing)]


def test_a_step_is_measured_for_its_pool(metrics: Metrics) -> None:
    metrics.step(Pool.DECODE, 0.02, batch=7, num_tokens=7)
    metrics.step(Pool.PREFILL, 0.5, batch=2, num_tokens=256)
    assert value(metrics, "step_duration_seconds_sum", pool="decode") == 0.02
    assert value(metrics, "step_duration_seconds_sum", pool="prefill") == 0.5
    assert value(metrics, "batch_size_sum", pool="decode") == 7
    assert value(metrics, "batch_size_sum", pool="prefill") == 2
    assert value(metrics, "iteration_tokens_sum", pool="prefill") == 256


def test_a_pool_is_scaled_up_or_down_and_in_no_other_direction(metrics: Metrics) -> None:
    metrics.scaled(Pool.PREFILL, "up")
    assert value(metrics, "scale_events_total", pool="prefill", direction="up") == 1
    with pytest.raises(ValueError, match="sideways"):
        metrics.scaled(Pool.PREFILL, "sideways")


def test_pairs_are_counted_by_state(metrics: Metrics) -> None:
    ready, joined = PairView("p", "d", "shm", ready=True), PairView("p", "e", "ray", ready=False)
    snapshot = replace(SNAPSHOT, pairs=(ready, ready, joined, PairView("q", "d", "", ready=False)))
    metrics.registry.register(SnapshotGauges(lambda: snapshot))
    states = {state: value(metrics, "pairs", state=state) for state in PAIR_STATES}
    assert states == {"ready": 2, "joined": 1, "apart": 1}


def test_a_worker_that_is_not_up_has_no_place_for_requests(metrics: Metrics) -> None:
    up, down = SNAPSHOT.workers[0], replace(SNAPSHOT.workers[1], incarnation="")
    metrics.registry.register(SnapshotGauges(lambda: replace(SNAPSHOT, workers=(up, down))))
    limit = {
        view.id: value(metrics, "num_requests_running_limit", pool=view.pool, worker=view.id)
        for view in (up, down)
    }
    assert limit == {"prefill-0": 8, "decode-0": 0}


def test_a_late_timer_is_a_lag_and_an_early_one_is_none() -> None:
    now, lags = [10.0], list[float]()
    late_s = iter((0.0, 0.5, -0.25))

    async def sleep(seconds: float) -> None:
        late = next(late_s, None)
        if late is None:
            raise asyncio.CancelledError
        now[0] += seconds + late

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(measure_loop_lag(lags.append, sleep, lambda: now[0]))
    assert lags == [0.0, 0.5, 0.0]


@pytest.mark.skipif(sys.platform != "linux", reason="process metrics come from Linux's /proc")
def test_the_routers_own_process_is_there_under_the_usual_names(metrics: Metrics) -> None:
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds", "start_time_seconds"):
        assert (metrics.registry.get_sample_value(f"process_{name}") or 0) > 0


def test_the_totals_are_the_metrics_own_sums(metrics: Metrics) -> None:
    metrics.request_admitted()
    metrics.request_left()
    metrics.request_failed()
    metrics.request_rejected("QUEUE_FULL")
    metrics.first_token(0.5, 2)
    metrics.token_gap(0.75, 3)
    metrics.request_finished([FinishReason.LENGTH], TIMING, Usage(7, 5))
    metrics.step(Pool.PREFILL, 0.1, batch=1, num_tokens=7)
    metrics.step(Pool.DECODE, 0.1, batch=1, num_tokens=1)
    metrics.set_back("preempted", resumed=True)
    metrics.set_back("refused", resumed=False)
    metrics.worker_restarted(Pool.DECODE, "exited")
    totals = metrics.totals
    counted = {
        "requests_rejected": value(metrics, "admission_rejections_total", reason="queue_full"),
        "requests_finished": value(metrics, "request_success_total", finished_reason="length"),
        "first_tokens": value(metrics, "time_to_first_token_seconds_count"),
        "ttft_sum_s": value(metrics, "time_to_first_token_seconds_sum"),
        "token_gaps": value(metrics, "inter_token_latency_seconds_count"),
        "token_gap_sum_s": value(metrics, "inter_token_latency_seconds_sum"),
        "generation_tokens": value(metrics, "generation_tokens_total"),
        "prefill_tokens": value(metrics, "iteration_tokens_sum", pool="prefill"),
        "resumes": value(metrics, "resumes_total", reason="preempted"),
        "preemptions": value(metrics, "preemptions_total"),
        "worker_restarts": value(metrics, "worker_restarts_total", pool="decode", reason="exited"),
    }
    assert {name: getattr(totals, name) for name in counted} == pytest.approx(counted)
    assert all(counted.values())
    assert (totals.requests_admitted, totals.requests_left, totals.requests_failed) == (1, 1, 1)
