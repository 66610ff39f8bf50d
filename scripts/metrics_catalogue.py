"""Every metric that a scrape shows, read from the code that shows it: names, labels, values, buckets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Exposed

from router.telemetry.gauges import SnapshotGauges
from router.telemetry.metrics import Metrics
from router.telemetry.series import HandoffSeries, LatencySeries, LifeSeries, RequestSeries, WorkerSeries
from twinpool.session.messages import LoadReport
from twinpool.types import Pool, WorkerState
from twinpool.views import PairView, Snapshot, WorkerView

OPEN_LABELS = ("worker", "version", "block_size", "dtype")
"""Their values come from the deployment; all other labels' are in the code."""

PROCESS = {
    "process_cpu_seconds_total": ("counter", "Processor time of the router's process."),
    "process_resident_memory_bytes": ("gauge", "Memory of the router's process."),
    "process_virtual_memory_bytes": ("gauge", "Address space of the router's process."),
    "process_open_fds": ("gauge", "Files and sockets that the router's process holds open."),
    "process_max_fds": ("gauge", "How many it may hold open."),
    "process_start_time_seconds": ("gauge", "When it started, in seconds since 1970."),
}
"""What prometheus_client shows of the router's process, on Linux alone."""

_SECTIONS: tuple[tuple[str, Callable[[CollectorRegistry], object]], ...] = (
    ("Requests", RequestSeries),
    ("What users feel", LatencySeries),
    ("Hand-off", HandoffSeries),
    ("Steps, setbacks and resumes", WorkerSeries),
    ("Lives of workers, and the router's event loop", LifeSeries),
)
STATE = "State at the moment of the scrape"
PROCESS_SECTION = "The router's process (Linux)"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. name: as it is queried, but for a histogram's suffixes.

    labels: by name, all their values; none where they come from the deployment. buckets: as `le` has them.
    """

    section: str
    name: str
    kind: str
    text: str
    labels: dict[str, tuple[str, ...]]
    buckets: tuple[str, ...] = ()

    def series(self) -> dict[str, Family]:
        """What may be queried of it, by name: itself, or a histogram's three parts."""
        if self.kind != "histogram":
            return {self.name: self}
        bare = replace(self, buckets=())
        return {f"{self.name}_bucket": self, f"{self.name}_sum": bare, f"{self.name}_count": bare}


def catalogue() -> list[Family]:
    """All metrics, section by section."""
    metrics = Metrics()
    metrics.describe("1.2.3", {"block_size": "16", "dtype": "float32"})
    for pool in Pool:
        metrics.worker_used(pool, f"{pool}-0", 0.0)
    metrics.registry.register(SnapshotGauges(lambda: _EXAMPLE))
    sections = _sections()
    exposed = [each for each in metrics.registry.collect() if not each.name.startswith("process_")]
    families = [_family(sections.get(each.name, STATE), each) for each in exposed]
    order = [*(title for title, _ in _SECTIONS), STATE]
    families.sort(key=lambda family: order.index(family.section))
    process = [Family(PROCESS_SECTION, name, kind, text, {}) for name, (kind, text) in PROCESS.items()]
    return families + process


def queryable() -> dict[str, Family]:
    """What may be queried, by name."""
    return {name: part for family in catalogue() for name, part in family.series().items()}


def _sections() -> dict[str, str]:
    found: dict[str, str] = {}
    for title, build in _SECTIONS:
        registry = CollectorRegistry()
        build(registry)
        found |= {each.name: title for each in registry.collect()}
    return found


def _family(section: str, exposed: Exposed) -> Family:
    suffix = {"counter": "_total", "info": "_info"}.get(exposed.type, "")
    labels: dict[str, dict[str, None]] = {}
    for sample in exposed.samples:
        for label, value in sample.labels.items():
            labels.setdefault(label, {})[value] = None
    buckets = tuple(labels.pop("le", ()))
    values = {label: () if label in OPEN_LABELS else tuple(found) for label, found in labels.items()}
    name = exposed.name + suffix
    return Family(section, name, exposed.type, exposed.documentation, values, buckets)


def _worker(pool: Pool) -> WorkerView:
    return WorkerView(f"{pool}-0", pool, WorkerState.READY, 1, "127.0.0.1", "1", 1, LoadReport())


_EXAMPLE = Snapshot(
    model="example",
    serving=True,
    queue_requests=0,
    queue_tokens=0,
    num_requests=0,
    workers=tuple(_worker(pool) for pool in Pool),
    pairs=(PairView("prefill-0", "decode-0", "shm", ready=True),),
    handoffs_in_flight=0,
    target_workers=dict.fromkeys(Pool, 1),
)
