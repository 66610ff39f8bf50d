"""Composes a table from what engines printed: medians over rounds, and ours divided by the best peer's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Figures = Mapping[str, float]
"""Tokens a second by what was measured."""


@dataclass(slots=True)
class Contestant:
    """One engine's runs, one a round; ours: not a peer."""

    name: str
    ours: bool = False
    runs: list[Figures] = field(default_factory=list)
    failure: str | None = None
    """Why it has no figures, or fewer than others; for people."""
    others_cpu: float = 0.0
    """The largest share of the machine's CPU time that other programs took during a run."""

    def medians(self) -> dict[str, float]:
        """Over all runs; empty where there is none."""
        names = dict.fromkeys(name for run in self.runs for name in run)
        return {name: median(run[name] for run in self.runs if name in run) for name in names}


def figures(result: Mapping[str, Any]) -> dict[str, float]:
    """What a driver's JSON, or that of `twinpool bench engine`, says."""
    decode = {_decode_name(each["batch"], each["context"]): each["tokens_per_s"] for each in result["decode"]}
    prefill = {f"prefill of {each['prompt']}": each["tokens_per_s"] for each in result["prefill"]}
    return decode | prefill


def table(contestants: Sequence[Contestant]) -> str:
    """Markdown: a row for each engine, one with the ratios, and a line for each failure.

    A ratio is that of the first engine marked `ours` to the best of those not marked, figure by figure.
    """
    measured = [each for each in contestants if each.runs]
    columns = list(dict.fromkeys(name for each in measured for name in each.medians()))
    lines = [_row(["tokens/s", *columns, "others' CPU"]), _row(["---"] * (len(columns) + 2))]
    for each in measured:
        found = each.medians()
        cells = [f"{found[name]:,.0f}" if name in found else "–" for name in columns]
        lines.append(_row([each.name, *cells, f"{each.others_cpu:.0%}"]))
    ratios = _ratios(measured)
    lines.append(
        _row(
            [
                "ours ÷ best peer",
                *(f"{ratios[name]:.2f}" if name in ratios else "–" for name in columns),
                "",
            ]
        )
    )
    failed = [f"{each.name}: {each.failure}" for each in contestants if each.failure]
    return "\n".join([*lines, *([""] if failed else []), *failed])


def limits(results: Iterable[Mapping[str, Any]]) -> str:
    """One line for each number of threads, medians over rounds."""
    by_threads: dict[int, list[Mapping[str, float]]] = {}
    for result in results:
        for each in result["limits"]:
            by_threads.setdefault(each["threads"], []).append(each)
    return "\n".join(
        f"{threads} thread{'s' * (threads > 1)}: memory read at {_median(found, 'read_gb_per_s'):.1f} GB/s, "
        f"{_median(found, 'products_g_per_s'):.1f} billion float32 products/s"
        for threads, found in by_threads.items()
    )


def _ratios(measured: Sequence[Contestant]) -> dict[str, float]:
    ours = next((each.medians() for each in measured if each.ours), {})
    peers = [each.medians() for each in measured if not each.ours]
    best = {name: max((peer[name] for peer in peers if name in peer), default=0.0) for name in ours}
    return {name: ours[name] / best[name] for name in ours if best[name]}


def _decode_name(rows: int, context: int) -> str:
    return f"{rows} row{'s' * (rows > 1)} after {context}"


def _median(found: Sequence[Mapping[str, float]], name: str) -> float:
    return median(each[name] for each in found)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
