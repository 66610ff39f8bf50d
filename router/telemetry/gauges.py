"""Gauges, computed from the dispatcher's snapshot at the moment they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from twinpool.types import Pool, WorkerState
from twinpool.views import PairView, Snapshot, WorkerView

PAIR_STATES = ("ready", "joined", "apart")
"""Proven by a canary; connected, but not proven; not connected."""


@dataclass(frozen=True, slots=True)
class _WorkerGauge:
    name: str
    text: str
    value: Callable[[WorkerView], float]


def _usage_ratio(view: WorkerView) -> float:
    return view.blocks_used / view.blocks_total if view.blocks_total else 0.0


WORKER_GAUGES = (
    _WorkerGauge(
        "num_requests_running", "Prompts being read, or rows in the batch.", lambda view: view.load.running
    ),
    _WorkerGauge(
        "num_requests_waiting",
        "Prompts waiting, or reservations without a row.",
        lambda view: view.load.waiting,
    ),
    _WorkerGauge("kv_blocks_used", "Blocks held by requests.", lambda view: view.blocks_used),
    _WorkerGauge("kv_blocks_cached", "Blocks kept for reuse.", lambda view: view.load.blocks_cached),
    _WorkerGauge(
        "kv_blocks_quarantined",
        "Blocks a writer may still touch; they count as used.",
        lambda view: view.load.blocks_quarantined,
    ),
    _WorkerGauge("kv_blocks_total", "All blocks.", lambda view: view.blocks_total),
    _WorkerGauge("kv_cache_usage_ratio", "Share of blocks held by requests, 0 to 1.", _usage_ratio),
    _WorkerGauge(
        "worker_resident_memory_bytes",
        "Memory of a worker's process, shared pages it has touched included.",
        lambda view: view.load.rss_bytes,
    ),
)


class SnapshotGauges(Collector):
    """take: returns the state now; called once a scrape, in the scraping thread."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    def describe(self) -> list[Metric]:
        """Nothing: a registry would otherwise collect, hence take a snapshot, when we register."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All gauges of one snapshot."""
        snapshot = self._take()
        yield from _system_gauges(snapshot)
        yield from _pool_gauges(snapshot)
        for gauge in WORKER_GAUGES:
            family = _gauge(gauge.name, gauge.text, "pool", "worker")
            for view in snapshot.workers:
                family.add_metric([view.pool.value, view.id], gauge.value(view))
            yield family
        yield _running_limit(snapshot)


def _system_gauges(snapshot: Snapshot) -> Iterator[Metric]:
    values = (
        ("requests_in_flight", "Requests admitted and not ended.", snapshot.num_requests),
        ("queue_tokens", "Prompt tokens of queued requests.", snapshot.queue_tokens),
        ("handoffs_in_flight", "Hand-offs and moves begun and not ended.", snapshot.handoffs_in_flight),
    )
    for name, text, value in values:
        family = _gauge(name, text)
        family.add_metric([], value)
        yield family


def _pool_gauges(snapshot: Snapshot) -> Iterator[Metric]:
    text = "Requests waiting for a worker of the pool: all wait before prefill, whichever pool has no room."
    queue = _gauge("queue_depth", text, "pool")
    for pool in Pool:
        queue.add_metric([pool.value], snapshot.queue_requests if pool is Pool.PREFILL else 0)
    yield queue
    workers = _gauge("workers", "Workers by state.", "pool", "state")
    target = _gauge("target_workers", "Workers that the pool should have.", "pool")
    for pool in Pool:
        target.add_metric([pool.value], snapshot.target_workers.get(pool, 0))
        in_pool = [view.state for view in snapshot.workers if view.pool is pool]
        for each in WorkerState:
            workers.add_metric([pool.value, each.value], in_pool.count(each))
    yield workers
    yield target
    pairs = _gauge("pairs", "Prefill-decode pairs by state; requests go to ready ones only.", "state")
    states = [_pair_state(pair) for pair in snapshot.pairs]
    for state in PAIR_STATES:
        pairs.add_metric([state], states.count(state))
    yield pairs


def _running_limit(snapshot: Snapshot) -> Metric:
    text = "Most prompts given to the worker at a time, or rows in its batch; 0 while it is not up."
    family = _gauge("num_requests_running_limit", text, "pool", "worker")
    for view in snapshot.workers:
        limit = snapshot.most_running.get(view.pool, 0) if view.incarnation else 0
        family.add_metric([view.pool.value, view.id], limit)
    return family


def _pair_state(pair: PairView) -> str:
    if pair.ready:
        return "ready"
    return "joined" if pair.transport else "apart"


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"twinpool_{name}", text, labels=labels)
