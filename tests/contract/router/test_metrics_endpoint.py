"""What a Prometheus server scrapes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.telemetry.metrics import Metrics
from router.telemetry.metrics_server import MetricsServer
from tests.support.router.fakes import TIMING, FakeDispatcher
from twinpool.errors import StartFailed
from twinpool.types import FinishReason, Usage

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Endpoint:
    def __init__(self, dispatcher: FakeDispatcher, metrics: Metrics, port: int) -> None:
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.port = port

    async def scrape(self) -> Samples:
        text = await asyncio.to_thread(self._read)
        families = text_string_to_metric_families(text)
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def _read(self) -> str:
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as response:
            text: str = response.read().decode()
        return text


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    dispatcher, metrics = FakeDispatcher(), Metrics()
    server = MetricsServer(metrics, dispatcher.snapshot)
    port = await server.start("127.0.0.1", 0)
    yield Endpoint(dispatcher, metrics, port)
    await server.stop()


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"twinpool_{name}", frozenset(labels.items())]


async def test_gauges_follow_the_snapshot_without_traffic(endpoint: Endpoint) -> None:
    samples = await endpoint.scrape()
    assert value(samples, "requests_in_flight") == 9
    assert value(samples, "queue_depth", pool="prefill") == 7
    assert value(samples, "queue_depth", pool="decode") == 0
    assert value(samples, "queue_tokens") == 70
    assert value(samples, "handoffs_in_flight") == 2
    assert value(samples, "num_requests_running", pool="decode", worker="decode-0") == 4
    assert value(samples, "num_requests_running_limit", pool="decode", worker="decode-0") == 64
    assert value(samples, "num_requests_waiting", pool="prefill", worker="prefill-0") == 3
    assert value(samples, "kv_blocks_used", pool="decode", worker="decode-0") == 30
    assert value(samples, "kv_blocks_cached", pool="decode", worker="decode-0") == 20
    assert value(samples, "kv_blocks_quarantined", pool="decode", worker="decode-0") == 5
    assert value(samples, "pairs", state="ready") == 1
    assert value(samples, "kv_blocks_total", pool="decode", worker="decode-0") == 200
    assert value(samples, "kv_cache_usage_ratio", pool="decode", worker="decode-0") == 0.15
    assert value(samples, "workers", pool="decode", state="ready") == 1
    assert value(samples, "workers", pool="decode", state="lost") == 0
    assert value(samples, "target_workers", pool="decode") == 2
    endpoint.dispatcher.change(num_requests=0, queue_requests=0, workers=())
    samples = await endpoint.scrape()
    assert value(samples, "requests_in_flight") == value(samples, "queue_depth", pool="prefill") == 0
    assert not any(name == "twinpool_kv_blocks_used" for name, _ in samples)


async def test_the_phases_of_a_request_sum_to_its_duration(endpoint: Endpoint) -> None:
    endpoint.metrics.request_finished([FinishReason.STOP], TIMING, Usage(10, 5))
    samples = await endpoint.scrape()
    phases = ("queue_time", "prefill_time", "handoff_wait", "decode_time")
    parts = [value(samples, f"{phase}_seconds_sum") for phase in phases]
    assert parts == [TIMING.queue_s, TIMING.prefill_s, TIMING.handoff_wait_s, TIMING.decode_s]
    assert value(samples, "request_duration_seconds_sum") == sum(parts)
    assert value(samples, "request_time_per_output_token_seconds_sum") == 1.125 / 4
    assert value(samples, "request_success_total", finished_reason="stop") == 1


def num_threads() -> int:
    """Those that serve metrics."""
    return sum("serve_forever" in thread.name for thread in threading.enumerate())


async def test_a_stopped_endpoint_leaves_no_thread_and_no_port() -> None:
    server = MetricsServer(Metrics(), FakeDispatcher().snapshot)
    port = await server.start("127.0.0.1", 0)
    assert num_threads() == 1
    await server.stop()
    await server.stop()
    assert num_threads() == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


async def test_a_port_in_use_fails_the_start_by_name() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        host, port = taken.getsockname()
        with pytest.raises(StartFailed, match=f"{host}:{port}"):
            await MetricsServer(Metrics(), FakeDispatcher().snapshot).start(host, port)
