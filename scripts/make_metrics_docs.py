"""Write docs/metrics.md from the metrics that the code shows. Run: python -m scripts.make_metrics_docs"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from scripts.metrics_catalogue import Family, catalogue

PATH = Path(__file__).parent.parent / "docs" / "metrics.md"

HEAD = """# Metrics

<!-- Written by `make metrics` from the code; do not edit. -->

The router serves the metrics of the whole system, both pools included, at `http://127.0.0.1:9464/metrics`
(`--metrics-host`, `--metrics-port`). One target is enough, and it survives the restart of any worker.

* [deploy/prometheus](../deploy/prometheus) has a scrape configuration, alert rules and their tests:
  `prometheus --config.file=deploy/prometheus/prometheus.yaml`.
* [deploy/grafana](../deploy/grafana) has three dashboards to import: *Overview*, *Hand-off and cache*,
  *Pools and workers*. Grafana asks for a Prometheus data source.

Units are base units. Counters never fall while the router lives. Gauges are computed from queues and
allocators when they are scraped, so they fall to zero after the last request without any new traffic.
A label's values, where they are listed, are all there from the start, at zero; no label tells one request or
client from another. Canaries, the router's own small requests, count in what workers do and hold, and among
no requests. The four phases sum to a request's duration.

First tokens, the time between tokens and tokens produced are counted as they go out, of all requests.
Prompt tokens, lengths, phases, duration and time per output token are counted in one go at the end of a
request that ended well: of one that fails or whose client leaves they say nothing.

There is no prefix cache yet, hence no metric of its hits.
"""
TABLE = """
## {section}

| name | type | labels | meaning |
|---|---|---|---|
"""
BUCKETS = """
## Buckets

"""


def render() -> str:
    """The whole page."""
    families = catalogue()
    page = HEAD
    for section, members in groupby(families, key=lambda family: family.section):
        page += TABLE.format(section=section) + "".join(map(_line, members))
    return page + BUCKETS + _buckets(families)


def _line(family: Family) -> str:
    labels = "; ".join(map(_label, family.labels.items()))
    return f"| `{family.name}` | {family.kind} | {labels} | {family.text} |\n"


def _label(label: tuple[str, tuple[str, ...]]) -> str:
    name, values = label
    return f"`{name}`" + (f": {', '.join(values)}" if values else "")


def _buckets(families: list[Family]) -> str:
    """Histograms that share their bounds, together."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for family in families:
        if family.buckets:
            shared.setdefault(family.buckets, []).append(f"`{family.name}`")
    return "".join(f"* {', '.join(names)}: {' '.join(bounds)}\n" for bounds, names in shared.items())


if __name__ == "__main__":
    PATH.write_text(render())
