"""Counters and histograms: named as promised, zero from the start, labels bounded."""

from __future__ import annotations

import pytest

from router.gauges import SnapshotGauges
from router.metrics import Metrics
from router.scheduling.requests import Setback
from router.series import RESUMES
from tests.contract.router.fakes import SNAPSHOT, TIMING
from twinpool.types import FinishReason, Pool, Timing, Usage

NAMES = """
requests requests_in_flight queue_depth queue_tokens admission_rejections request_success client_disconnects
request_duration_seconds time_to_first_token_seconds inter_token_latency_seconds
request_time_per_output_token_seconds request_prompt_tokens request_generation_tokens prompt_tokens
generation_tokens queue_time_seconds prefill_time_seconds handoff_wait_seconds decode_time_seconds
handoff_seconds handoff_bytes handoff_failures handoffs_in_flight leases_expired num_requests_running
num_requests_waiting kv_blocks_used kv_blocks_cached kv_blocks_total kv_cache_usage_ratio batch_size
step_duration_seconds iteration_tokens workers target_workers worker_restarts build cache_config
preemptions resumes
"""


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"twinpool_{name}", labels)


def test_every_promised_metric_is_there_and_no_other(metrics: Metrics) -> None:
    metrics.describe("1.2.3", {"block_size": "16"})
    metrics.registry.register(SnapshotGauges(lambda: SNAPSHOT))
    assert {family.name for family in metrics.registry.collect()} == {f"twinpool_{n}" for n in NAMES.split()}
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


def test_nothing_is_labelled_by_what_a_client_or_an_error_says(metrics: Metrics) -> None:
    before = sum(len(family.samples) for family in metrics.registry.collect())
    metrics.request_rejected("SOMETHING_NEW")
    metrics.handoff_failed("something new")
    metrics.handoff_done("pigeon", 10, 0.1)
    metrics.worker_restarted(Pool.DECODE, "something new")
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
    metrics.request_finished(FinishReason.LENGTH, Timing(0.1, 0.2), Usage(3, 1))
    assert value(metrics, "request_time_per_output_token_seconds_count") == 0
    assert value(metrics, "prompt_tokens_total") == 3


def test_a_request_that_ended_is_in_every_histogram_once(metrics: Metrics) -> None:
    metrics.request_finished(FinishReason.STOP, TIMING, Usage(10, 5))
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
    metrics.set_back("something new", resumed=True)
    assert value(metrics, "preemptions_total") == 2
    assert value(metrics, "resumes_total", reason="preempted") == 1
    assert value(metrics, "resumes_total", reason="worker_lost") == 1
    assert value(metrics, "resumes_total", reason="handoff_failed") == 0
    assert value(metrics, "resumes_total", reason="other") == 1


def test_every_setback_that_may_resume_has_its_series() -> None:
    assert {*RESUMES} == {each.value for each in Setback if each is not Setback.REFUSED} | {"other"}


def test_a_step_is_measured_for_its_pool(metrics: Metrics) -> None:
    metrics.step(Pool.DECODE, 0.02, 7)
    assert value(metrics, "step_duration_seconds_sum", pool="decode") == 0.02
    assert value(metrics, "step_duration_seconds_count", pool="prefill") == 0
    assert value(metrics, "batch_size_sum") == 7
