"""Writes the PromQL that the dashboards need: selectors, rates, quantiles, means."""

from __future__ import annotations

WINDOW = "$__rate_interval"


def select(name: str, **labels: str) -> str:
    """A metric of the chosen router. labels: values; one that begins with ~ or !~ is a pattern."""
    matchers = ['job="$job"', 'instance=~"$instance"']
    for label, value in labels.items():
        operator = next((each for each in ("!~", "~", "!") if value.startswith(each)), "")
        sign = {"!~": "!~", "~": "=~", "!": "!=", "": "="}[operator]
        matchers.append(f'{label}{sign}"{value.removeprefix(operator)}"')
    full = name if name.startswith("process_") else f"twinpool_{name}"
    return f"{full}{{{','.join(matchers)}}}"


def total(name: str, by: str = "", **labels: str) -> str:
    """A gauge, summed."""
    return f"sum{_by(by)}({select(name, **labels)})"


def rate(name: str, by: str = "", **labels: str) -> str:
    """A counter's rate, summed."""
    return f"sum{_by(by)}(rate({select(name, **labels)}[{WINDOW}]))"


def increase(name: str, window: str, by: str = "", **labels: str) -> str:
    """By how much a counter grew in a fixed window, summed."""
    return f"sum{_by(by)}(increase({select(name, **labels)}[{window}]))"


def quantile(share: float, histogram: str, by: str = "", **labels: str) -> str:
    """A quantile of a histogram."""
    buckets = rate(f"{histogram}_bucket", f"le,{by}" if by else "le", **labels)
    return f"histogram_quantile({share}, {buckets})"


def mean(histogram: str, by: str = "", **labels: str) -> str:
    """The mean of what a histogram has seen; none where it has seen nothing."""
    return ratio(rate(f"{histogram}_sum", by, **labels), rate(f"{histogram}_count", by, **labels))


def share_within(bound: str, histogram: str) -> str:
    """The share of observations no greater than a bound. bound: as `le` has it."""
    return ratio(rate(f"{histogram}_bucket", le=bound), rate(f"{histogram}_count"))


def ratio(part: str, whole: str) -> str:
    """Part by whole; nothing, rather than no number, where the whole is zero."""
    return f"{part} / ({whole} > 0)"


def _by(by: str) -> str:
    return f" by ({by}) " if by else ""
