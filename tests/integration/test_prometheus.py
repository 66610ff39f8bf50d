"""A real Prometheus sees what the clients saw, and zero once they have gone."""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass

import pytest

from scripts.metrics_catalogue import queryable
from tests.support.system.running import GAUGES_AT_REST, RunningSystem, quiesce
from tests.support.system.scraping import PROMETHEUS, WHY_SKIPPED, Prometheus, eventually
from twinpool.client.values import Summary

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason=WHY_SKIPPED)
ASKED = (("The capital of France is", 12), ([1] * 40, 8), ("One, two,", 1), ([2] * 300, 4))
"""(prompt, tokens to produce); the third makes no hand-off."""
PHASES = ("queue_time", "prefill_time", "handoff_wait", "decode_time")
EPSILON_S = 1e-6
LEAST_SHARE = 0.75
"""Of the time that the clients of a few requests measured, what the server has; the rest is trips to it."""


@dataclass(frozen=True)
class Seen:
    """One request by its client's clock, in seconds, and what the server said of it."""

    ttft_s: float
    duration_s: float
    summary: Summary


@pytest.fixture(scope="module")
def system(one_pair: RunningSystem) -> RunningSystem:
    return one_pair


@pytest.fixture(scope="module")
def seen(system: RunningSystem, server: Prometheus) -> list[Seen]:
    """All that clients ever asked of this system; Prometheus has heard of it."""
    requests = [ask(system, prompt, num_tokens) for prompt, num_tokens in ASKED]
    ended = 'sum(twinpool_requests_total{method="Generate"})'
    eventually(lambda: server.value(ended), lambda num_ended: num_ended == len(requests))
    return requests


def ask(system: RunningSystem, prompt: str | list[int], num_tokens: int) -> Seen:
    started = time.perf_counter()
    chunks = system.client.generate(prompt, max_tokens=num_tokens, ignore_eos=True)
    first = next(chunks)
    ttft_s = time.perf_counter() - started
    last = [first, *chunks][-1]
    assert last.summary is not None
    return Seen(ttft_s, time.perf_counter() - started, last.summary)


def test_requests_and_tokens_are_those_of_the_clients(server: Prometheus, seen: list[Seen]) -> None:
    usages = [request.summary.usage for request in seen]
    assert [usage.completion_tokens for usage in usages] == [num_tokens for _, num_tokens in ASKED]
    num_made = sum(usage.completion_tokens for usage in usages)
    expected = {
        'twinpool_requests_total{method="Generate",code="OK"}': len(seen),
        "sum(twinpool_requests_total)": len(seen),
        'twinpool_request_success_total{finished_reason="length"}': len(seen),
        "sum(twinpool_request_success_total)": len(seen),
        "twinpool_prompt_tokens_total": sum(usage.prompt_tokens for usage in usages),
        "twinpool_generation_tokens_total": num_made,
        "twinpool_request_generation_tokens_sum": num_made,
        "twinpool_request_prompt_tokens_count": len(seen),
        "twinpool_time_to_first_token_seconds_count": len(seen),
        "twinpool_inter_token_latency_seconds_count": num_made - len(seen),
        "twinpool_request_time_per_output_token_seconds_count": len(seen) - 1,
        'twinpool_handoff_seconds_count{transport="shm"}': len(seen) - 1,
        "sum(twinpool_handoff_seconds_count)": len(seen) - 1,
        "sum(twinpool_handoff_failures_total)": 0,
        "sum(twinpool_setbacks_total)": 0,
        "sum(twinpool_worker_restarts_total)": 0,
    }
    eventually(lambda: {expr: server.value(expr) for expr in expected}, lambda found: found == expected)


def test_times_lie_between_the_summaries_and_the_clients_own(server: Prometheus, seen: list[Seen]) -> None:
    timings = [request.summary.timing for request in seen]
    ttft_s = server.value("twinpool_time_to_first_token_seconds_sum")
    assert sum(timing.queue_s + timing.prefill_s for timing in timings) - EPSILON_S <= ttft_s
    clients_ttft_s = sum(request.ttft_s for request in seen)
    assert LEAST_SHARE * clients_ttft_s <= ttft_s <= clients_ttft_s
    duration_s = server.value("twinpool_request_duration_seconds_sum")
    assert duration_s == pytest.approx(sum(sum(astuple(timing)) for timing in timings))
    clients_duration_s = sum(request.duration_s for request in seen)
    assert LEAST_SHARE * clients_duration_s <= duration_s <= clients_duration_s


def test_the_phases_are_those_of_the_summaries_and_sum_to_the_duration(
    server: Prometheus, seen: list[Seen]
) -> None:
    sums = [server.value(f"twinpool_{phase}_seconds_sum") for phase in PHASES]
    told = [sum(phase) for phase in zip(*(astuple(each.summary.timing) for each in seen), strict=True)]
    assert sums == pytest.approx(told)
    assert sum(sums) == pytest.approx(server.value("twinpool_request_duration_seconds_sum"))


def test_work_is_measured_in_both_pools(server: Prometheus, seen: list[Seen]) -> None:
    for pool in ("prefill", "decode"):
        assert server.value(f'twinpool_step_duration_seconds_count{{pool="{pool}"}}') > 0
        assert server.value(f'twinpool_worker_cpu_seconds_total{{pool="{pool}"}}') > 0
        assert server.value(f'twinpool_worker_resident_memory_bytes{{pool="{pool}"}}') > 100e6
        assert server.value(f'twinpool_workers{{pool="{pool}",state="ready"}}') == 1
    read = 'twinpool_iteration_tokens_sum{pool="prefill"}'
    assert server.value(read) >= sum(request.summary.usage.prompt_tokens for request in seen)
    assert server.value('twinpool_pairs{state="ready"}') == 1
    assert server.value("twinpool_event_loop_lag_seconds_count") > 0


def test_gauges_return_to_zero_without_any_new_traffic(server: Prometheus, seen: list[Seen]) -> None:
    names = "|".join((*GAUGES_AT_REST, "twinpool_kv_blocks_quarantined"))
    at_rest = f'{{__name__=~"{names}"}}'
    num_series = len(server.values(at_rest))
    assert num_series >= len(GAUGES_AT_REST)
    eventually(lambda: server.values(f"{at_rest} != 0"), lambda high: not high)
    assert len(server.values(at_rest)) == num_series


def test_no_counter_ever_falls(server: Prometheus, seen: list[Seen]) -> None:
    counters = [name for name, family in queryable().items() if family.kind in ("counter", "histogram")]
    fallen = {name: server.value(f"sum(resets({name}[10m]))") for name in counters}
    assert {name for name, times in fallen.items() if times} == set()


def test_every_rule_is_evaluated_and_no_alert_fires(server: Prometheus, seen: list[Seen]) -> None:
    def unhealthy() -> list[str]:
        groups = server.ask("/api/v1/rules")["groups"]
        assert groups
        return [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"]

    eventually(unhealthy, lambda names: not names)
    assert not server.values('ALERTS{alertstate="firing"}')


def test_the_system_is_at_rest_after_all(system: RunningSystem, seen: list[Seen]) -> None:
    quiesce(system)
