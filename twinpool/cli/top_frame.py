"""One picture of `twinpool top`, in lines that fit the terminal: the whole, the last minutes, the workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from twinpool.cli.charts import Glyphs, sparkline
from twinpool.cli.top_history import (
    WINDOW_S,
    History,
    Measure,
    itl_s,
    queue_depth,
    requests_per_s,
    tokens_in_per_s,
    tokens_out_per_s,
    ttft_s,
)
from twinpool.cli.top_workers import worker_lines
from twinpool.client.status import Status
from twinpool.totals import Totals

_LABEL, _VALUE = 10, 9
_LEAST_CELLS, _MOST_CELLS = 8, 90
_LINES_FOR_WORKERS = 6
"""So many lines are the workers', at least: in a low terminal the graphs give way."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Where it is drawn. height: lines; None: as many as there are to show, and it never changes."""

    width: int
    height: int | None
    glyphs: Glyphs


@dataclass(frozen=True, slots=True)
class View:
    """What there is to show. trouble: why there is no newer status, in words; empty if all is well."""

    target: str
    status: Status | None
    history: History
    trouble: str = ""


def frame(view: View, screen: Screen) -> list[Text]:
    """The lines, none longer than the screen is wide."""
    lines = _head(view)
    if view.status is not None:
        height = screen.height
        room = None if height is None else height - len(lines) - 1
        graphs = _graphs(view.history, screen, None if room is None else room - _LINES_FOR_WORKERS)
        lines += [Text(), *graphs] if graphs else []
        room = None if height is None else height - len(lines) - 1
        lines += [Text(), *worker_lines(view.status, screen.width, room, screen.glyphs)]
    for line in lines:
        _cut(line, screen)
    return lines if screen.height is None else lines[: screen.height]


# The whole.


def _head(view: View) -> list[Text]:
    lines = [_headline(view)]
    if view.trouble:
        lines.append(Text(view.trouble, style="bold red"))
    if view.status is not None:
        lines += [_present(view.status), _so_far(view.status.totals)]
    return lines


def _headline(view: View) -> Text:
    status = view.status
    if status is None:
        return Text.assemble(("twinpool top", "bold"), f"  {view.target}")
    if view.trouble:
        state = ("as it was last seen", "yellow")
    else:
        state = ("serving", "bold green") if status.serving else ("NOT SERVING", "bold red")
    uptime = f"  up {duration(status.totals.uptime_s)}" if status.totals.uptime_s else ""
    return Text.assemble(
        (status.model, "bold"), "  ", state, f"{uptime}  {view.target}", ("  q quits", "dim")
    )


def _present(status: Status) -> Text:
    ready, queue = sum(pair.ready for pair in status.pairs), status.queue
    return Text.assemble(
        f"{status.requests} requests, {queue.requests} queued ({number(queue.tokens)} tokens)",
        f"  hand-offs {status.handoffs_in_flight}  pairs ",
        (f"{ready}/{len(status.pairs)} ready", "" if ready == len(status.pairs) else "yellow"),
    )


def _so_far(totals: Totals) -> Text:
    text = Text(f"done {number(totals.requests_finished)}")
    for words, count, style in (
        ("failed", totals.requests_failed, "red"),
        ("left", totals.requests_left, ""),
        ("refused", totals.requests_rejected, "yellow"),
        ("resumes", totals.resumes, "yellow"),
        ("preempted", totals.preemptions, ""),
        ("restarts", totals.worker_restarts, "yellow"),
    ):
        text.append(f"  {words} {number(count)}", style=style if count else "")
    return text


# The last minutes.


@dataclass(frozen=True, slots=True)
class _Graph:
    label: str
    measure: Measure
    form: Callable[[float], str]
    style: str


def number(value: float) -> str:
    """A count or a rate in few characters: 0.4, 12, 340, 1.2k, 15k, 2.0M."""
    if value >= 999_500:
        return f"{value / 1e6:.1f}M"
    if value >= 999.5:
        return f"{value / 1000:.{0 if value >= 9950 else 1}f}k"
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"


def latency(seconds: float) -> str:
    """In few characters: 4.2 ms, 120 ms, 1.25 s, 12.5 s."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.{0 if seconds >= 0.00995 else 1}f} ms"
    return f"{seconds:.{2 if seconds < 9.995 else 1}f} s"


def duration(seconds: float) -> str:
    """In few characters: 42 s, 5 min, 3 h 12 min, 4 d 3 h."""
    minutes, hours, days = int(seconds / 60), int(seconds / 3600), int(seconds / 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"


def _per_s(value: float) -> str:
    return f"{number(value)}/s"


# Those that a low terminal keeps longest first.
_GRAPHS = (
    _Graph("TTFT", ttft_s, latency, "magenta"),
    _Graph("ITL", itl_s, latency, "magenta"),
    _Graph("tokens out", tokens_out_per_s, _per_s, "cyan"),
    _Graph("queue", queue_depth, number, "yellow"),
    _Graph("tokens in", tokens_in_per_s, _per_s, "cyan"),
    _Graph("requests", requests_per_s, _per_s, "blue"),
)


def _graphs(history: History, screen: Screen, room: int | None) -> list[Text]:
    num_graphs = len(_GRAPHS) if room is None else min(len(_GRAPHS), room - 1)
    num_cells = min(_MOST_CELLS, screen.width - _LABEL - 2 * _VALUE - 4)
    if num_graphs < 1:
        return []
    # A picture that does not move has looked back too little for a curve.
    drawn = num_cells >= _LEAST_CELLS and screen.height is not None
    title = f"last {WINDOW_S / 60:.0f} min".ljust(num_cells)[:num_cells] + "  " if drawn else ""
    lines = [Text(f"{'':{_LABEL}}{'now':>{_VALUE}}  {title}{'max':>{_VALUE}}", style="dim")]
    for graph in _GRAPHS[:num_graphs]:
        line = history.line(graph.measure, max(num_cells, _LEAST_CELLS))
        now, most = (("-" if value is None else graph.form(value)) for value in (line.now, line.most))
        curve = f"{sparkline(line.cells, screen.glyphs)}  " if drawn else ""
        lines.append(
            Text.assemble(
                f"{graph.label:{_LABEL}}",
                (f"{now:>{_VALUE}}", "bold"),
                "  ",
                (curve, graph.style),
                (f"{most:>{_VALUE}}", "dim"),
            )
        )
    return lines


def _cut(line: Text, screen: Screen) -> None:
    """Cut a line in place, with a sign that it was."""
    if line.cell_len > screen.width:
        line.truncate(max(0, screen.width - 1))
        line.append(screen.glyphs.ellipsis)
